"""The two clocks of a live run: how much of the failure clock is spent, how many samples are left, how far the run should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twoclocks.errors import ScheduleError
from twoclocks.failure import FailureClock
from twoclocks.progress import ProgressClock
from twoclocks.schedule import Schedule, Stage
from twoclocks.timetable import Timetable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Reading:
    """Where a run stands.

    Attributes
    ----------
    drift_spent : float
        Damage so far, sum of B r(B, c) over updates: collapse is expected at 1 (linear damage).
    samples_left : float
        Completions until the safety budget is spent at the present setting.
    planned_left : int
        Completions that the schedule still asks for.
    drift_at_end : float
        Damage when the schedule has run as planned.
    gain : float
        Progress that the clock expects by now, metric units.
    extrapolated : bool
        Whether the present setting lies outside what the failure clock was fitted on.
    """

    drift_spent: float
    samples_left: float
    planned_left: int
    drift_at_end: float
    gain: float
    extrapolated: bool


class Monitor:
    """Reads fitted clocks along a timetable.

    Parameters
    ----------
    progress, failure : ProgressClock, FailureClock
    safety : float
        D, the share of a collapse that the run may use up.
    """

    def __init__(self, progress: ProgressClock, failure: FailureClock, safety: float = 0.8) -> None:
        self.progress, self.failure, self.safety = progress, failure, safety
        self._sums: list[tuple[float, float]] = [(0.0, 0.0)]  # (damage, gain) after k updates
        self._table: Timetable | None = None

    def read(self, timetable: Timetable, update: int) -> Reading:
        """The clocks after `update` updates of a timetable."""
        if self._table is not timetable:
            self._table, self._sums = timetable, [(0.0, 0.0)]
            for k in range(timetable.updates):
                self._sums.append(self._after(k))
        damage, gain = self._sums[update]
        setting = timetable.rollout(min(update, timetable.updates - 1)).setting
        (low, high), (c_low, c_high) = self.failure.batch_range, self.failure.drift_range
        rate = float(self.failure.hazard(setting.batch, setting.drift_rate, extrapolate=True))
        return Reading(
            drift_spent=damage,
            samples_left=max(0.0, self.safety - damage) / rate,
            planned_left=timetable.samples - timetable.samples_before(update),
            drift_at_end=self._sums[-1][0],
            gain=gain,
            extrapolated=not (low <= setting.batch <= high and c_low <= setting.drift_rate <= c_high),
        )

    def _after(self, update: int) -> tuple[float, float]:
        assert self._table is not None
        damage, gain = self._sums[update]
        batch = self._table.rollout(update).setting.batch
        c = self._table.lr(update) / math.sqrt(batch)  # below the setting's within the warm-up
        damage += batch * float(self.failure.hazard(batch, c, extrapolate=True))
        return damage, gain + batch * float(self.progress.per_sample(batch, c, extrapolate=True))


def clocks_of(schedule: Schedule) -> tuple[ProgressClock, FailureClock]:
    """The clocks that a schedule was planned with.

    Raises
    ------
    ScheduleError
        If its provenance holds none.
    """
    told: Any = schedule.provenance.get("clocks")
    try:
        made: dict[str, Any] = {name: {k: tuple(v) if isinstance(v, list) else v for k, v in told[name].items()} for name in ("progress", "failure")}
        return ProgressClock(**made["progress"]), FailureClock(**made["failure"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ScheduleError("this schedule carries no clocks; write one with `twoclocks plan` (or tc.plan), which keeps them in its provenance") from error


def read_log(rows: pd.DataFrame, progress: ProgressClock, failure: FailureClock, *, safety: float, planned: int) -> Reading:
    """The clocks along a run's curve rows, whatever setting it ran: batch and logged lr of every row.

    Parameters
    ----------
    rows : DataFrame
        Curve rows of one run, in order of samples.
    planned : int
        Training completions that its schedule asks for.
    """
    batch, samples = rows["batch"].to_numpy(float), rows["samples"].to_numpy(float)
    rates = rows["lr"].astype(float).bfill().ffill().to_numpy()
    c = rates / np.sqrt(batch)
    known = np.isfinite(c) & (c > 0)
    length = np.diff(samples, prepend=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        hazard = np.where(known, failure.hazard(batch, np.where(known, c, 1.0), extrapolate=True), 0.0)
        pace = np.where(known, progress.per_sample(batch, np.where(known, c, 1.0), extrapolate=True), 0.0)
    damage, done = float(hazard @ length), float(samples[-1])
    now = float(hazard[-1])
    return Reading(
        drift_spent=damage,
        samples_left=max(0.0, safety - damage) / now if now > 0 else math.inf,
        planned_left=max(0, planned - int(done)),
        drift_at_end=damage + now * max(0.0, planned - done),
        gain=float(pace @ length),
        extrapolated=not (
            failure.batch_range[0] <= batch[-1] <= failure.batch_range[1] and failure.drift_range[0] <= c[-1] <= failure.drift_range[1] * (1 + 1e-9)
        ),
    )


def past_stages(timetable: Timetable, update: int) -> list[Stage]:
    """What the first `update` updates ran, as stages; a schedule that begins with them has the same past."""
    stages: list[Stage] = []
    for rollout in timetable.rollouts:
        done = min(update - rollout.update, rollout.updates)
        if done <= 0:
            break
        if stages and stages[-1].setting == rollout.setting:
            stages[-1] = Stage(rollout.setting, stages[-1].samples + done * rollout.setting.batch)
        else:
            stages.append(Stage(rollout.setting, done * rollout.setting.batch))
    return stages


def continued(timetable: Timetable, update: int, rest: Schedule) -> Schedule:
    """The schedule that keeps a run's past and then follows another: for a switch at a rollout border."""
    provenance = {**timetable.schedule.provenance, "continued_at": timetable.samples_before(update), "by": rest.provenance}
    return Schedule((*past_stages(timetable, update), *rest.stages), timetable.schedule.lr_warmup_samples, provenance)
