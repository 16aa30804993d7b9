"""A verdict for every preregistered claim and testbed that has runs; the tests are those of the run files' headers.

A claim without runs has no row: TC6 needs a second testbed, TC7 a switched schedule against constants.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import optimize
from statsmodels.stats.multitest import multipletests

from analysis.fits import METRIC, N_BOOT, TARGET, rounded
from analysis.load import finished, lr_at_reference
from analysis.statistics import Effect, Verdict, above, from_draws, inside, per_seed
from twoclocks import censored
from twoclocks.failure import detect_collapses, early_limit, timeable
from twoclocks.fitting import metric_curve, rate, samples_to_target
from twoclocks.records import Runs

GREEDY, GREEDY_GAIN = "heldout_acc", 0.05  # preregistered: target = start + 5 points of greedy accuracy
SAMPLED = "heldout_sampled"  # what E3 is judged on
EARLY_REWARD = 0.20  # exploratory target: the highest level, in steps of 0.01, that every clipped progress run reaches
SMALL, LARGE = 128, 2048  # 16x
MORE_SAMPLES = math.log(1.15)  # TC1b: 15% more samples
PER_DOUBLING = 1.5  # TC2: B_rel falls at least 1.5x per 2x of c
DELAY = math.log(1.3)  # TC4: 1.3x later per 16x of B
EARLY, SHORTER = math.log(0.9), math.log(0.8)  # TC5
MIN_TIMED = 2  # timed collapses beyond the parameters of a fit; with fewer, the noise fits itself
CLIP_COVARIATES = ["batch", "c", "clip", "clip x batch"]


@dataclass(frozen=True)
class Claim:
    """One row: what was claimed, what was found, and the runs it rests on.

    Attributes
    ----------
    bound : str
        The pass rule in words.
    runs : list of str
        Ids of the runs used.
    effect : Effect or None
        None where the runs do not determine it.
    p : float or None
        p-value of the supporting test, for Holm: the largest where a claim has parts; None counts as 1.
    """

    name: str
    testbed: str
    statement: str
    bound: str
    runs: list[str]
    verdict: Verdict = "undetermined"
    effect: Effect | None = None
    p: float | None = None
    note: str = ""


def shown(effect: Effect) -> str:
    """Value and 95% interval, three digits."""
    low, high = effect.interval()
    return f"{effect.value:.3g} [{low:.3g}, {high:.3g}]"


def samples_table(runs: Runs, metric: str, target: float | None) -> pd.DataFrame:
    """One row a run: batch, c, clip, seed and samples to the target (default: the start plus 5 points), inf if not reached."""
    rows = []
    for run in runs.runs.itertuples():
        n, y, w = metric_curve(runs, str(run.run_id), metric)
        goal = y[0] + GREEDY_GAIN if target is None else target
        rows.append((run.run_id, run.batch, rate(run.drift_rate), not pd.isna(run.clip_low), run.seed, samples_to_target(n, y, w, goal)))
    return pd.DataFrame(rows, columns=["run_id", "batch", "c", "clipped", "seed", "samples"])


def missed(table: pd.DataFrame) -> str:
    """Empty if every run reached the target, else how many did not: a censored mean would flatter them."""
    count = int((~np.isfinite(table["samples"])).sum())
    return f"{count} of {len(table)} runs did not reach the target" if count else ""


def drift_exponent(runs: Runs, testbed: str) -> Claim:
    """TC1a: exponent in B of first-order gain per sample and c, from probes past the warm-up in the first third."""
    rows = []
    for run in runs.runs.itertuples():
        curve = runs.curves[(runs.curves["run_id"] == run.run_id) & runs.curves["probe_gain"].notna()]
        curve = curve[(curve["samples"] > run.lr_warmup_samples) & (curve["samples"] <= run.samples / 3)]
        rows += [(run.run_id, run.seed, run.batch, g / run.batch / run.drift_rate) for g in curve["probe_gain"]]
    probes = pd.DataFrame(rows, columns=["run_id", "seed", "batch", "a"])
    probes["sd"] = probes.groupby("batch")["a"].transform("std")
    claim = Claim(
        "TC1a", testbed, "drift per sample does not depend on the batch", "90% interval of the exponent inside ±0.1",
        sorted(probes["run_id"].unique()), note=f"{len(probes)} probes; a gradient of 2,048 completions is noisy against one update",
    )  # fmt: skip
    exponents = []
    for _, seed in probes.groupby("seed"):
        start = (max(float(np.average(seed["a"], weights=seed["sd"] ** -2)), 1e-9), 0.0)
        law = lambda x, a, b: a * np.exp(b * x)  # noqa: E731
        try:
            fitted, _ = optimize.curve_fit(law, np.log(seed["batch"] / 256), seed["a"], p0=start, sigma=seed["sd"], maxfev=5000)
        except RuntimeError:
            return replace(claim, note="no exponent fits one seed's probes")
        exponents.append(fitted[1])
    effect = per_seed(np.array(exponents))
    return replace(claim, verdict=inside(effect, -0.1, 0.1), effect=effect, p=effect.p_inside(-0.1, 0.1))


def batch_penalty(name: str, runs: Runs, testbed: str, *, clipped: bool, metric: str = GREEDY, target: float | None = None) -> Claim:
    """TC1b (and TC4's second half, without clip): log E(2048)/E(128), averaged over drift rates, per seed."""
    table = samples_table(runs, metric, target)
    table = table[(table["clipped"] == clipped) & table["batch"].isin([SMALL, LARGE])]
    statement = f"a 16x larger batch needs more samples to the target ({'clip 0.2' if clipped else 'no clip'})"
    claim = Claim(name, testbed, statement, "log E(2048)/E(128) above log 1.15", sorted(table["run_id"]))
    if missed(table):
        return replace(claim, note=missed(table))
    logs = np.log(table.pivot_table(index=["seed", "c"], columns="batch", values="samples"))
    effect = per_seed((logs[LARGE] - logs[SMALL]).groupby("seed").mean().to_numpy())
    return replace(claim, verdict=above(effect, MORE_SAMPLES), effect=effect, p=effect.p_above(MORE_SAMPLES))


def critical_batch_falls(runs: Runs, testbed: str, *, clipped: bool = True, metric: str = GREEDY, target: float | None = None) -> Claim:
    """TC2: slope of log E in B at the larger drift rate against 1.5^log2(c2/c1) times the slope at the smaller."""
    table = samples_table(runs, metric, target)
    table = table[table["clipped"] == clipped]
    statement = f"the critical batch falls as the learning rate rises ({'clip 0.2' if clipped else 'no clip'})"
    claim = Claim("TC2", testbed, statement, "slope(c2) - 1.5^log2(c2/c1) slope(c1) above 0", sorted(table["run_id"]))
    if missed(table):
        return replace(claim, note=missed(table))
    slopes = table.groupby(["seed", "c"]).apply(lambda g: np.polyfit(g["batch"] / 1000, np.log(g["samples"]), 1)[0], include_groups=False).unstack("c")
    low, high = slopes.columns.min(), slopes.columns.max()
    effect = per_seed((slopes[high] - PER_DOUBLING ** math.log2(high / low) * slopes[low]).to_numpy())
    note = f"slopes per 1,000 of batch: {slopes[low].mean():.3f} at lr32 {lr_at_reference(low):.1e}, {slopes[high].mean():.3f} at {lr_at_reference(high):.1e}"
    loss = per_seed(slopes[low].to_numpy())  # the rule asks for a loss at the smaller rate too
    verdict = above(effect, 0.0)
    if verdict == "supported" and above(loss, 0.0) != "supported":
        verdict, note = "undetermined", f"{note}; no loss with batch at the smaller rate"
    return replace(claim, verdict=verdict, effect=effect, p=max(effect.p_above(0.0), loss.p_above(0.0)), note=note)


def collapse_table(runs: Runs, metric: str) -> tuple[pd.DataFrame, dict[str, np.ndarray]]:
    """One row a run: batch, c, clip and collapse with its censoring; and the sample counts at which a collapse could be seen."""
    curves = {run: metric_curve(runs, run, metric)[:2] for run in runs.runs["run_id"]}
    found, _ = detect_collapses(curves)
    rows = []
    for run in runs.runs.itertuples():
        collapse = found[str(run.run_id)]
        rows.append((run.run_id, run.batch, rate(run.drift_rate), not pd.isna(run.clip_low), collapse.kind, collapse.lower, collapse.upper))
    table = pd.DataFrame(rows, columns=["run_id", "batch", "c", "clipped", "kind", "lower", "upper"])
    early = early_limit([n for n, _ in curves.values()])
    return table, {run: timeable(n, early) for run, (n, _) in curves.items()}


def fit_collapse(everything: pd.DataFrame, looks: dict[str, np.ndarray], covariates: list[str]) -> tuple[np.ndarray, np.ndarray] | None:
    """Log-linear collapse times: (estimates, bootstrap draws), intercept first; None if too few collapses are timed.

    Cells with a collapse too early to time are left out whole: dropping such runs one by one would keep a cell's late
    ones. Covariates: "batch" and "c" as logs, "clip" 0 or 1, "clip x batch".
    """
    early = everything.assign(early=everything["kind"] == "left").groupby(["batch", "c", "clipped"])["early"].transform("any")
    table = everything[~early]
    timed = table[table["kind"] == "interval"]
    sides = timed.groupby("clipped")["batch"].nunique() if "clip" in covariates else pd.Series([timed["batch"].nunique()])
    spans = timed["c"].nunique() >= 2 and len(sides) == (2 if "clip" in covariates else 1) and sides.min() >= 2
    if not spans or len(timed) < len(covariates) + 1 + MIN_TIMED:
        return None
    log_b, log_c = np.log(table["batch"].to_numpy(float) / 256), np.log(table["c"].to_numpy(float) / table["c"].median())
    clip = table["clipped"].to_numpy(float)
    values = {"batch": log_b, "c": log_c, "clip": clip, "clip x batch": clip * log_b}
    design = np.column_stack([np.ones(len(table)), *(values[name] for name in covariates)])
    times = censored.Times(table["lower"].to_numpy(float), table["upper"].to_numpy(float), table.groupby("batch").ngroup().to_numpy())

    def law(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return theta @ design.T, np.broadcast_to(design, (*theta.shape[:-1], *design.shape))

    start = np.zeros(design.shape[1])
    start[0] = np.log(timed["upper"]).mean()
    fitted = censored.fit(times, law, [start])
    grids = [looks[run] for run in table["run_id"]]
    return fitted.theta, censored.bootstrap(times, law, fitted, grids, N_BOOT, exact=False, rng=np.random.default_rng(0)).theta


def counts(table: pd.DataFrame) -> str:
    """How many runs collapsed at a resolved time, too early to time, or not."""
    kinds = table["kind"].value_counts()
    return "collapsed: " + ", ".join(f"{kinds.get(k, 0)} {text}" for k, text in (("interval", "timed"), ("left", "too early to time"), ("right", "not")))


def failure_exponents(runs: Runs, testbed: str, *, name: str = "TC3", metric: str = GREEDY) -> Claim:
    """TC3: exponents of E* in B and c over the unclipped cells."""
    table, looks = collapse_table(runs, metric)
    claim = Claim(
        name, testbed, "samples to collapse do not depend on the batch and go as 1/c (drift threshold)",
        "90% interval of b_B inside ±0.25; 95% of b_c contains -1, excludes -2", sorted(table["run_id"]), note=counts(table),
    )  # fmt: skip
    fitted = fit_collapse(table, looks, ["batch", "c"])
    if fitted is None:
        return replace(claim, note=f"{claim.note}; too few timed collapses for two exponents")
    theta, draws = fitted
    batch, drift = from_draws(theta[1], draws[:, 1]), np.quantile(draws[:, 2], [0.025, 0.975])
    invariant, linear = inside(batch, -0.25, 0.25), drift[0] <= -1 <= drift[1]
    note = f"{claim.note}; b_c {theta[2]:.2f} [{drift[0]:.2f}, {drift[1]:.2f}]"
    verdict: Verdict = "undetermined"
    if invariant == "contradicted" or not linear:
        verdict = "contradicted"
        note += ": steeper than drift or diffusion, as at a threshold in the learning rate" if drift[1] < -2 else ""
    elif invariant == "supported" and not drift[0] <= -2 <= drift[1]:
        verdict = "supported"
    elif invariant == "supported":
        note += ": consistent with drift or diffusion"
    p = max(batch.p_inside(-0.25, 0.25), from_draws(theta[2], draws[:, 2]).p_above(-2.0))
    return replace(claim, verdict=verdict, effect=batch, p=p, note=note)


def clip_delays(runs: Runs, testbed: str, *, metric: str = GREEDY) -> Claim:
    """TC4: interaction of clip and log B in log E*, as the log of the extra delay per 16x of batch."""
    table, looks = collapse_table(runs, metric)
    claim = Claim(
        "TC4", testbed, "a ratio clip delays collapse, more at larger batches (S=4)", "extra log delay per 16x of B above 0 and at least log 1.3",
        sorted(table["run_id"]), note=f"{counts(table)}; S=1 and fixed-rollout controls not run",
    )  # fmt: skip
    fitted = fit_collapse(table, looks, CLIP_COVARIATES)
    if fitted is None:
        return replace(claim, note=f"{claim.note}; too few timed collapses on both sides of the clip")
    theta, draws = fitted
    effect = from_draws(theta[4] * math.log(16), draws[:, 4] * math.log(16))
    low, high = effect.interval()
    verdict: Verdict = "supported" if low > 0 and effect.value >= DELAY else "contradicted" if high < DELAY else "undetermined"
    return replace(claim, verdict=verdict, effect=effect, p=effect.p_above(0.0))


def wide_clip_trades(runs: Runs, testbed: str, *, metric: str = GREEDY, target: float | None = None) -> Claim:
    """TC5: without clip, samples to an early target at most 0.9x, and samples to collapse at most 0.8x (at batch 256)."""
    early = samples_table(runs, metric, target)
    claim = Claim(
        "TC5", testbed, "widening the clip (here: none) buys early speed and costs stability",
        "log E ratio below log 0.9 and log E* ratio below log 0.8", sorted(early["run_id"]),
    )  # fmt: skip
    if missed(early):
        return replace(claim, note=missed(early))
    logs = np.log(early.pivot_table(index=["seed", "batch", "c"], columns="clipped", values="samples"))
    speed = per_seed((logs[False] - logs[True]).groupby("seed").mean().to_numpy())
    table, looks = collapse_table(runs, metric)
    gone = table.assign(gone=table["kind"] != "right").groupby("clipped")["gone"].mean()
    note = f"collapsed: {gone[False]:.0%} without clip, {gone[True]:.0%} with"
    fitted = fit_collapse(table, looks, CLIP_COVARIATES)
    life = None if fitted is None else from_draws(-fitted[0][3], fitted[1][:, 3])
    note += "; too few timed collapses for the E* ratio" if life is None else f"; log E* ratio {shown(life)}"
    parts = [above(Effect(-e.value, e.se, e.df), -limit) for e, limit in ((speed, EARLY), (life, SHORTER)) if e is not None]
    verdict: Verdict = "contradicted" if "contradicted" in parts else "supported" if parts == ["supported", "supported"] else "undetermined"
    p = max(1 - speed.p_above(EARLY), 1.0 if life is None else 1 - life.p_above(SHORTER))
    return replace(claim, verdict=verdict, effect=speed, p=p, note=note)


def judge(runs: Runs, testbed: str) -> list[Claim]:
    """The preregistered claims on a testbed, each verdict "supported" only if it survives Holm over the claims."""
    progress = finished(runs, testbed, ["pilot_progress"])
    failing = finished(runs, testbed, ["pilot_failure"])
    unclipped = finished(runs, testbed, ["pilot_failure", "pilot_onset"], clipped=False)
    onset = finished(runs, testbed, ["e3_failure"])
    return holm(
        [
            drift_exponent(progress, testbed),
            batch_penalty("TC1b", progress, testbed, clipped=True),
            critical_batch_falls(progress, testbed),
            failure_exponents(unclipped, testbed),
            failure_exponents(onset, testbed, name="TC3-E3", metric=SAMPLED),
            clip_delays(failing, testbed),
            batch_penalty("TC4b", progress, testbed, clipped=False),
            wide_clip_trades(failing, testbed),
        ]
    )


def beside(runs: Runs, testbed: str) -> list[Claim]:
    """The same tests on training reward: exploratory, chosen after the runs were seen."""
    progress = finished(runs, testbed, ["pilot_progress"])
    failing = finished(runs, testbed, ["pilot_failure"])
    unclipped = finished(runs, testbed, ["pilot_progress", "pilot_failure", "pilot_onset"], clipped=False)
    return [
        batch_penalty("TC1b", progress, testbed, clipped=True, metric=METRIC, target=EARLY_REWARD),
        critical_batch_falls(progress, testbed, metric=METRIC, target=EARLY_REWARD),
        critical_batch_falls(progress, testbed, clipped=False, metric=METRIC, target=EARLY_REWARD),
        failure_exponents(unclipped, testbed, metric=METRIC),
        failure_exponents(finished(runs, testbed, ["e3_failure"]), testbed, name="TC3-E3", metric=METRIC),
        failure_exponents(finished(runs, testbed, ["e3_failure"]), testbed, name="TC3-E3 greedy"),
        clip_delays(failing, testbed, metric=METRIC),
        batch_penalty("TC4b", progress, testbed, clipped=False, metric=METRIC, target=EARLY_REWARD),
    ]


def holm(claims: list[Claim]) -> list[Claim]:
    """Withdraw "supported" where the claim's p-value does not survive Holm's correction at 5%."""
    values = [1.0 if c.p is None else c.p for c in claims]
    keep = dict(zip((c.name for c in claims), multipletests(values, alpha=0.05, method="holm")[0], strict=True))
    return [
        replace(c, verdict="undetermined", note=f"{c.note}; passes alone, not after Holm".strip("; ")) if c.verdict == "supported" and not keep[c.name] else c
        for c in claims
    ]


def table_lines(claims: list[Claim]) -> list[str]:
    """Markdown rows of claims."""
    lines = ["| claim | testbed | statement | pass rule | verdict | effect [95% interval] | runs | note |", "|---|---|---|---|---|---|---|---|"]
    for c in claims:
        effect = "not determined" if c.effect is None else shown(c.effect)
        lines.append(f"| {c.name} | {c.testbed} | {c.statement} | {c.bound} | **{c.verdict}** | {effect} | {len(c.runs)} | {c.note} |")
    return lines


def markdown(preregistered: list[Claim], exploratory: list[Claim]) -> str:
    """analysis/claims.md."""
    return "\n".join(
        [
            "# Claims",
            "",
            "Computed by `analysis/claims.py` from `experiments/results`; the tests were written in the run files' headers before the runs.",
            'Run ids behind each row are in `claims.json`. A claim without runs has no row. "Supported" has survived Holm\'s correction.',
            "",
            "## Preregistered",
            "",
            *table_lines(preregistered),
            "",
            "All but unclipped batch 2048 at lr32 5e-6 cross the greedy target within the lr warm-up (8,192 samples), where evaluations are",
            "2,048 apart: read E as coarse there.",
            "",
            "## Beside them: the same tests on training reward (exploratory)",
            "",
            f"Chosen after the runs were seen. Greedy accuracy of this start checkpoint gains {GREEDY_GAIN:.2f} within the lr warm-up and dips while sampled",
            f"accuracy still rises, so the tests are repeated on training reward (target {EARLY_REWARD:.2f}; the clocks use {TARGET:.2f}). Not corrected.",
            "",
            *table_lines(exploratory),
            "",
        ]
    )


def write(preregistered: list[Claim], exploratory: list[Claim], folder: Path) -> None:
    """Write claims.md and claims.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "claims.md").write_text(markdown(preregistered, exploratory))
    rows = []
    for claim in [*preregistered, *exploratory]:
        effect = claim.effect and {"value": claim.effect.value, "se": claim.effect.se, "df": claim.effect.df if math.isfinite(claim.effect.df) else None}
        rows.append({**vars(claim), "effect": effect, "preregistered": claim in preregistered})
    (folder / "claims.json").write_text(json.dumps(rounded(rows), indent=1) + "\n")
