"""Plan from some of the pilot's seeds, look at the others: predicted against observed samples to target and to collapse.

The unclipped pilot has seeds 0, 1 and 2. Clocks are fitted, and a schedule planned, from seeds 0 and 1; seed 2 was not seen. A
prediction's interval is that of one new run: the fitted median times exp(+-1.96 sd) of the runs' own spread.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from analysis.fits import GROUPS, METRIC, N_BOOT, TARGET, TESTBED, rounded
from analysis.load import finished, lr_at_reference
from twoclocks.errors import NeverReachedError, TwoclocksError
from twoclocks.fitting import Clocks, fit
from twoclocks.planner import plan
from twoclocks.records import Runs

GROUP = "mini-noclip"
SEEN, HELD = [0, 1], [2]
SAMPLES, SAFETY = 163_840, 0.8


def evaluate(runs: Runs) -> dict[str, Any]:
    """The schedule, and for every held-out cell what was predicted and what happened."""
    sweeps = [sweep for sweep in GROUPS[GROUP]["sweeps"] if sweep.startswith("pilot")]
    whole = finished(runs, TESTBED, sweeps, clipped=False)
    seen, held = (whole.select(seed=seeds) for seeds in (SEEN, HELD))
    clocks = fit(seen, metric=METRIC, target=TARGET, n_boot=N_BOOT)
    observed = fit(held, metric=METRIC, target=TARGET, n_boot=2).cells
    found: dict[str, Any] = {"seen_runs": sorted(seen.runs["run_id"]), "held_runs": sorted(held.runs["run_id"]), "warnings": clocks.warnings}
    try:
        schedule = plan(clocks, samples=SAMPLES, safety=SAFETY, accept_misfit=True)
        found["schedule"] = [{"batch": s.setting.batch, "lr32": lr_at_reference(s.setting.drift_rate), "samples": s.samples} for s in schedule.stages]
        found["damage"] = schedule.provenance["predicted_damage"]
        found["notes"] = schedule.provenance["notes"]
        setting = schedule.stages[0].setting
        apart = np.hypot(np.log(observed["batch"] / setting.batch), np.log(observed["drift_rate"] / setting.drift_rate))
        found["nearest"] = cell(clocks, observed.loc[apart.idxmin()])
    except TwoclocksError as error:
        found["refused"] = str(error)
    found["cells"] = [cell(clocks, row) for _, row in observed.sort_values(["drift_rate", "batch"]).iterrows()]
    for clock in ("target", "collapse"):
        judged = [c[clock]["within"] for c in found["cells"] if c[clock].get("within") is not None]
        found[f"{clock}_within"] = f"{sum(judged)} of {len(judged)}"
    return found


def cell(clocks: Clocks, row: Any) -> dict[str, Any]:
    """Prediction and observation at one held-out run."""
    batch, c = float(row["batch"]), float(row["drift_rate"])
    try:
        median = float(clocks.require("progress").samples_to_gain(clocks.gain, batch, c, extrapolate=True))
    except NeverReachedError:
        median = math.inf
    told = {"run_id": row["run_id"], "batch": int(batch), "lr32": lr_at_reference(c)}
    told["target"] = against(median, clocks.require("progress").log_sd, row["target_lower"], row["target_upper"])
    if clocks.failure is not None:
        life = float(clocks.failure.samples_to_failure(batch, c, extrapolate=True))
        told["collapse"] = against(life, clocks.failure.log_sd, row["collapse_lower"], row["collapse_upper"])
    else:
        told["collapse"] = {}
    return told


def against(median: float, sd: float, lower: float, upper: float) -> dict[str, Any]:
    """Whether what was observed, (lower, upper] or exact, meets the interval predicted for one run."""
    low, high = (median * math.exp(sign * 1.96 * sd) for sign in (-1, 1))
    shown = f"{lower:,.0f}" if lower == upper else f"over {lower:,.0f}" if math.isinf(upper) else f"{lower:,.0f} to {upper:,.0f}"
    return {
        "predicted": median if math.isfinite(median) else "never",
        "low": low,
        "high": high,
        "observed": shown,
        "within": bool(upper >= low and lower <= high),
    }


def markdown(found: dict[str, Any]) -> str:
    """analysis/heldout.md."""

    def text(told: dict[str, Any]) -> str:
        if not told:
            return "unidentified | |"
        if told["predicted"] == "never":
            return f"never | {told['observed']} | {'yes' if told['within'] else 'NO'}"
        return f"{told['predicted']:,.0f} [{told['low']:,.0f}, {told['high']:,.0f}] | {told['observed']} | {'yes' if told['within'] else 'NO'}"

    lines = [
        "# Planned on some seeds, observed on another",
        "",
        f"Unclipped pilot, {METRIC} to {TARGET}. Fitted on seeds {SEEN} ({len(found['seen_runs'])} runs), observed on seed {HELD}",
        f"({len(found['held_runs'])} runs); full-rate completions; intervals are those of one new run. Computed by `analysis/heldout.py`.",
        "",
        f"Within the predicted interval: samples to target {found['target_within']}, samples to collapse {found['collapse_within']}.",
        "",
    ]
    if "schedule" in found:
        stages = "; ".join(f"batch {s['batch']}, lr32 {s['lr32']:.3g}, {s['samples']:,} samples" for s in found["schedule"])
        near = found["nearest"]
        lines += [
            f"Schedule for {SAMPLES:,} samples at safety {SAFETY}: {stages}; predicted damage {found['damage']:.2f}. The nearest held-out run is",
            f"batch {near['batch']}, lr32 {near['lr32']:.3g}: target {text(near['target']).replace(' | ', ', observed ', 1).replace(' | ', ', within: ')}; "
            f"collapse {text(near['collapse']).replace(' | ', ', observed ', 1).replace(' | ', ', within: ')}.",
            *[f"Note: {note}." for note in found["notes"]],
        ]
    else:
        lines.append(f"No schedule: {found['refused']}")
    lines += ["", "| batch | lr32 | target predicted | observed | within | collapse predicted | observed | within |", "|---|---|---|---|---|---|---|---|"]
    lines += [f"| {c['batch']} | {c['lr32']:.3g} | {text(c['target'])} | {text(c['collapse'])} |" for c in found["cells"]]
    return "\n".join(lines) + "\n"


def write(found: dict[str, Any], folder: Path) -> None:
    """heldout.md and heldout.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "heldout.md").write_text(markdown(found))
    (folder / "heldout.json").write_text(json.dumps(rounded(found), indent=1) + "\n")
