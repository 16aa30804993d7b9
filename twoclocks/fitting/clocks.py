"""What a fit returns: clocks with intervals, what the runs contradict, what they leave open, and which run would close it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from twoclocks.errors import UnidentifiedError
from twoclocks.failure import LAWS, FailureClock
from twoclocks.fitting.forecast import Forecast
from twoclocks.progress import ProgressClock

LEVEL = 0.95
MISFIT = 0.01
BETTER = 2.0  # an AIC this much lower is another model's advantage


@dataclass(frozen=True)
class Clocks:
    """Fitted clocks with intervals, and what the runs did not determine.

    Attributes
    ----------
    progress : ProgressClock or None
    failure : FailureClock or None
    draws : dict of str -> DataFrame
        Bootstrap draws of "progress" (a, h0, h1, saturation_batch) and "failure" (samples, b_batch, b_drift).
    limits : dict of str -> DataFrame
        Intervals, rows low and high, a column a parameter: centred on the estimate, as wide (Student) as the draws' percentile interval.
    cells : DataFrame
        One row a run: batch, drift_rate, samples to the (first) target, and collapse with its censoring; full-rate completions.
        `lost_half` is how the run counts if a collapse has to lose half of what was gained.
    unidentified : dict of str -> str
        Clock -> why it could not be fitted and which run would identify it.
    shared : dict
        What all runs have in common: group, updates_per_rollout, clip, warm-up.
    metric, target, gain
        What progress means here: the metric, the level to reach, and its distance from the start.
    noise_sd : float
        Evaluation noise of the collapse rule.
    misfit : dict of str -> float
        Clock -> p-value of its law against one free mean a cell; small means the law does not describe these runs.
    model : str
        Progress model that `progress` holds: curvature, saturation or both.
    models : DataFrame
        The three progress models side by side: parameters, log likelihood, AIC, log likelihood of held-out cells.
    next_cells : DataFrame
        For every parameter the batch and lr whose runs would shrink its interval most, and by how much.
    intervals : str
        How intervals were made: parametric bootstrap below ten seeds a cell, cluster bootstrap over seeds from there on.
    forecast : Forecast or None
        With a single run: how far its drift has gone.
    """

    progress: ProgressClock | None
    failure: FailureClock | None
    draws: dict[str, pd.DataFrame]
    limits: dict[str, pd.DataFrame]
    cells: pd.DataFrame
    unidentified: dict[str, str]
    shared: dict[str, Any]
    metric: str
    target: float
    gain: float
    noise_sd: float
    misfit: dict[str, float] = field(default_factory=dict)
    level: float = LEVEL
    model: str = "curvature"
    models: pd.DataFrame = field(default_factory=pd.DataFrame)
    next_cells: pd.DataFrame = field(default_factory=pd.DataFrame)
    intervals: str = ""
    forecast: Forecast | None = None

    def require(self, clock: str) -> Any:
        """The named clock.

        Raises
        ------
        UnidentifiedError
            If the runs do not determine it; the message names the run that would.
        """
        found = getattr(self, clock)
        if found is None:
            raise UnidentifiedError(f"{clock} clock: {self.unidentified[clock]}")
        return found

    def interval(self, clock: str, parameter: str) -> tuple[float, float]:
        """(low, high) of one parameter at `level`."""
        table = self.limits[clock]
        return float(table.loc["low", parameter]), float(table.loc["high", parameter])

    def summary(self) -> pd.DataFrame:
        """A row a parameter: value, interval, and in `note` what the runs leave open; an unidentified clock has its reason there."""
        rows: list[dict[str, Any]] = []
        for clock in ("progress", "failure"):
            found = getattr(self, clock)
            if found is None:
                rows.append({"clock": clock, "parameter": "unidentified", "value": None, "low": None, "high": None, "note": self.unidentified[clock]})
                continue
            for name in map(str, self.draws[clock]):
                low, high = self.interval(clock, name)
                rows.append({"clock": clock, "parameter": name, "value": getattr(found, name), "low": low, "high": high, "note": self._open(name, low, high)})
        return pd.DataFrame(rows)

    def _open(self, name: str, low: float, high: float) -> str:
        """What an interval leaves open about its parameter, and the run that would shrink it most; empty if nothing."""
        if name == "h1" and low <= 0 <= high:
            gap = f"sign not identified; at most {high:.3g}"
        elif name == "h1" and low > 0 and high > 10 * low:
            gap = "known to a factor of ten at best"
        elif name == "saturation_batch" and self._at_the_edge():
            gap = f"not identified from above; at least {low:.3g}"
        elif name in ("b_batch", "b_drift") and high - low > 1:
            gap = "too wide to tell the laws apart"
        else:
            return ""
        advice = self.next_cells[self.next_cells["parameter"] == name] if len(self.next_cells) else self.next_cells
        if advice.empty:
            return gap
        best = advice.iloc[0]
        return f"{gap}; {best['seeds']} runs at batch {best['batch']}, lr {best['lr']:g} would shrink the interval to {best['shrinks_to']:.0%}"

    def _at_the_edge(self) -> bool:
        """Whether more than the interval's tail of the draws ended where B_sat was not sought any further."""
        draws = self.draws["progress"]["saturation_batch"]
        return bool((draws >= 0.99 * draws.max()).mean() > (1 - self.level) / 2)

    def laws(self) -> dict[str, str]:
        """Every named law of collapse: "within the intervals", or which exponent excludes it; empty without a failure clock."""
        if self.failure is None:
            return {}
        within = {name: self.interval("failure", name) for name in ("b_batch", "b_drift")}
        found = {}
        for law, exponents in LAWS.items():
            out = [
                f"{name} = {value:g} is outside [{within[name][0]:.2f}, {within[name][1]:.2f}]"
                for name, value in zip(within, exponents, strict=True)
                if not within[name][0] <= value <= within[name][1]
            ]
            found[law] = "excluded: " + ", ".join(out) if out else "within the intervals"
        return found

    def __str__(self) -> str:
        if self.forecast is not None:
            return str(self.forecast)
        head = f"{self.metric} to {self.target:g} (a gain of {self.gain:.3g}); {len(self.cells)} runs; {self.level:.0%} intervals by {self.intervals}"
        laws = [f"{law}: {verdict}" for law, verdict in self.laws().items()]
        return "\n".join(
            [head, self.collapses, self.summary().to_string(index=False, float_format=lambda v: f"{v:.4g}", na_rep=""), *laws, *self.warnings, *self.remarks]
        )

    @property
    def collapses(self) -> str:
        """How many runs collapsed, by the margin in points and by half of what was gained."""
        told = []
        for column, rule in (("collapse", "by margin"), ("lost_half", "losing half the gain")):
            counts = self.cells[column].value_counts()
            told.append(
                rule + " " + ", ".join(f"{counts.get(kind, 0)} {said}" for kind, said in (("interval", "timed"), ("left", "too early"), ("right", "not")))
            )
        return "collapses: " + "; ".join(told)

    @property
    def warnings(self) -> list[str]:
        """Clocks whose law the runs contradict, in words."""
        return [
            f"{clock} clock: its law does not describe these runs (p = {p:.1g} against one free mean a cell); fit a narrower range of lr or batch"
            for clock, p in self.misfit.items()
            if p < MISFIT
        ]

    @property
    def remarks(self) -> list[str]:
        """Where another progress model does better, by AIC and on held-out cells."""
        if self.models.empty:
            return []
        table = self.models.set_index("model")
        own, rivals = table.loc[self.model], table.drop(self.model)
        return [
            f"progress clock: the model {name!r} does better than {self.model!r} (AIC {own['aic'] - row['aic']:.1f} lower, held-out cells {verdict}); "
            f"fit it with model={name!r}"
            for name, row in rivals.iterrows()
            if own["aic"] - row["aic"] > BETTER
            for verdict in ["too" if row["heldout"] > own["heldout"] else "do not agree"]
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything but draws and cells as plain JSON types."""
        table = self.summary().astype(object)
        return {
            "metric": self.metric,
            "target": self.target,
            "gain": self.gain,
            "level": self.level,
            "intervals": self.intervals,
            "shared": {k: list(v) if isinstance(v, tuple) else v for k, v in self.shared.items()},
            "parameters": table.where(table.notna(), None).to_dict("records"),
            "laws": self.laws(),
            "collapses": None if self.forecast else self.collapses,
            "model": self.model,
            "models": self.models.to_dict("records"),
            "next_cells": self.next_cells.to_dict("records"),
            "misfit_p": self.misfit,
            "warnings": [*self.warnings, *self.remarks],
            "unidentified": self.unidentified,
            "forecast": self.forecast.to_json() if self.forecast else None,
            "run_ids": sorted(set(self.cells["run_id"])),
        }
