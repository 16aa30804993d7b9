"""The schema of the two records tables: columns, kinds, units, and the rules that a table must keep.

One row a run, and one row per (thinned) stretch of a run's updates. Unmeasured values are null, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from twoclocks.errors import RecordsError

SCHEMA_VERSION = 1
STATUSES = ("finished", "killed", "failed")
NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}"  # names are data; this keeps them from being paths


@dataclass(frozen=True)
class Column:
    """Name, kind (str, int, float, bool), whether it may be null, how a window of updates is summarised, and the unit."""

    name: str
    kind: str
    unit: str
    required: bool = False
    window: str = "mean"  # of the updates one thinned row stands for: mean, mean over its rollouts, or last


RUN_COLUMNS = (
    Column("schema_version", "int", "integer; this file is version 1", True),
    Column("run_id", "str", "unique name of the run: at most 80 of [A-Za-z0-9._-], no leading dot", True),
    Column("sweep", "str", "name of the sweep or run file", True),
    Column("testbed", "str", "model and task, as the claims table names them", True),
    Column("model", "str", "name of the start checkpoint", True),
    Column("task", "str", "name of the task", True),
    Column("device", "str", "accelerator or processor, as its driver names it", True),
    Column("status", "str", "finished, killed or failed", True),
    Column("collapsed", "bool", "collapse confirmed by the rule of twoclocks.failure when the sweep was collected; null if it has no evaluations"),
    Column("seed", "int", "of data order, sampling and optimizer; the start checkpoint is the same for all", True),
    Column("batch", "int", "completions per optimizer update", True),
    Column("group", "int", "completions per prompt", True),
    Column("updates_per_rollout", "int", "optimizer updates per rollout", True),
    Column("lr", "float", "learning rate after warm-up", True),
    Column("drift_rate", "float", "lr / sqrt(batch)", True),
    Column("clip_low", "float", "ratio clipped below 1 - clip_low; null means no clip"),
    Column("clip_high", "float", "ratio clipped above 1 + clip_high; null means no clip"),
    Column("lr_warmup_samples", "int", "completions over which the lr rises linearly from 0", True),
    Column("samples", "int", "training completions planned", True),
    Column("samples_done", "int", "training completions trained", True),
    Column("start_acc", "float", "held-out greedy accuracy of the start checkpoint, fraction"),
    Column("heldout_problems", "int", "problems behind every held-out accuracy"),
    Column("max_grad_norm", "float", "gradient-norm clip threshold; null means none"),
    Column("dtype", "str", "parameter dtype during training", True),
    Column("seconds", "float", "wall clock of training, s"),
    Column("git_sha", "str", "commit of the code that ran", True),
    Column("versions", "str", "JSON: package versions", True),
    Column("config", "str", "JSON: the full run configuration", True),
    Column("created", "str", "UTC time the run started, ISO 8601", True),
)

CURVE_COLUMNS = (
    Column("run_id", "str", "of the run table", True, "last"),
    Column("attempt", "int", "0, then +1 for each resume", True, "last"),
    Column("update", "int", "optimizer updates done", True, "last"),
    Column("samples", "int", "training completions done", True, "last"),
    Column("samples_generated", "int", "completions generated", True, "last"),
    Column("rollout", "int", "rollouts done", True, "last"),
    Column("batch", "int", "completions in this update", True, "last"),
    Column("lr", "float", "learning rate of this update", False, "last"),
    Column("reward", "float", "mean training reward of the rollouts in the window", window="rollout"),
    Column("heldout_acc", "float", "held-out greedy accuracy at `samples`, fraction", False, "last"),
    Column("heldout_sampled", "float", "held-out accuracy of completions sampled at temperature 1, at `samples`, fraction", False, "last"),
    Column("drift_abs", "float", "mean |log ratio| to the rollout policy on the update's tokens before its step, nats"),
    Column("drift_k1", "float", "mean -log ratio on the same tokens: the k1 estimate of KL(rollout policy || policy), nats"),
    Column("drift_k3", "float", "mean k3 estimate of KL(rollout policy || policy) on the same tokens, nats"),
    Column("drift_m2", "float", "mean (log ratio)^2 on the same tokens, nats^2"),
    Column("ess", "float", "effective sample size of the same tokens' ratios, (sum r)^2/(n sum r^2), fraction"),
    Column("ratio_max", "float", "largest ratio of the update's tokens"),
    Column("ratio_pos", "float", "mean ratio over tokens of positive advantage"),
    Column("ratio_neg", "float", "mean ratio over tokens of negative advantage"),
    Column("drift_cum_abs", "float", "drift_abs at the last update of each rollout, summed over rollouts, nats", window="last"),
    Column("drift_cum_k3", "float", "drift_k3 at the last update of each rollout, summed over rollouts, nats", window="last"),
    Column("drift_end_abs", "float", "drift_abs after the update's step, on its last micro-batch, nats"),
    Column("drift_end_k3", "float", "drift_k3 after the update's step, on its last micro-batch, nats"),
    Column("engine_mismatch", "float", "mean |log-probability of the trainer - of the generation engine| on the rollout's tokens, nats"),
    Column("inner_step", "int", "which update of its rollout, from 0", False, "last"),
    Column("ratio_hist", "str", "JSON: tokens by sign(A) log r, negative then positive advantages (twoclocks.trainers.drift.EDGES)", False, "last"),
    Column("clip_frac_low", "float", "fraction of tokens clipped below"),
    Column("clip_frac_high", "float", "fraction of tokens clipped above"),
    Column("kl_ref", "float", "mean KL estimate to the reference policy, nats"),
    Column("entropy", "float", "mean token entropy, nats"),
    Column("grad_norm", "float", "l2 norm before gradient clipping"),
    Column("grad_power", "float", "squared l2 norm of an update's mean gradient, before clipping"),
    Column("grad_noise", "float", "trace of the covariance of that mean gradient, from the spread between its parts"),
    Column("grad_clipped", "float", "share of updates whose gradient norm was above max_grad_norm"),
    Column("update_norm", "float", "l2 norm of the parameter change of one update"),
    Column("distance", "float", "l2 distance of the parameters from the start", False, "last"),
    Column("update_cos", "float", "cosine of an update's parameter change to the one before"),
    Column("length", "float", "mean completion length, tokens", window="rollout"),
    Column("zero_std_frac", "float", "fraction of groups whose rewards are all equal", window="rollout"),
    Column("probe_k3", "float", "k3 KL on fixed held-out completions, rollout policy to the policy after the update, nats"),
    Column("probe_gain", "float", "dot product of the update with a second-batch gradient of expected reward, reward per update"),
    Column("seconds", "float", "wall clock since training began, evaluations and probes left out (the pilot sweeps count probes), s", False, "last"),
)

TABLES = {"runs": RUN_COLUMNS, "curves": CURVE_COLUMNS}
_DTYPES = {"str": "string", "int": "int64", "float": "float32", "bool": "boolean"}
# lr spans many decades and enters ratios of a few percent; float32 is kept for measured curves only.
_EXACT = {"lr", "drift_rate", "seconds"}


def validate(table: pd.DataFrame, which: str, where: str) -> pd.DataFrame:
    """Check a table against its schema and return it with the schema's columns, order and dtypes.

    Raises
    ------
    RecordsError
        Names the file, the row, the column, the rule and the remedy.
    """
    columns = TABLES[which]
    absent = [c.name for c in columns if c.name not in table.columns]
    missing = [c.name for c in columns if c.name in absent and (which == "runs" or c.required)]
    if missing:
        raise RecordsError(f"{where}: missing column(s) {', '.join(missing)} of the {which} table; write it with twoclocks.records.write")
    if which == "runs":
        versions = {str(v) for v in table["schema_version"].dropna()}
        if versions - {str(SCHEMA_VERSION)}:
            raise RecordsError(
                f"{where}: schema_version {', '.join(sorted(versions))}; this release reads version {SCHEMA_VERSION} "
                "(units differ between versions): convert the file with the release that wrote it"
            )
    # Measurements are added from release to release: what a table does not have was not measured
    table = table.assign(**dict.fromkeys(absent))
    for column in columns:
        _check_column(table[column.name], column, where)
    checked = pd.DataFrame({c.name: _cast(table[c.name], c, where) for c in columns})
    if which == "runs":
        _check_runs(checked, where)
    return checked


def _check_column(values: pd.Series, column: Column, where: str) -> None:
    bad = values.isna()
    if column.kind == "float":
        number = pd.to_numeric(values, errors="coerce")
        text, infinite = number.isna() & values.notna(), np.isinf(number.to_numpy(float, na_value=0.0))
        if text.any():
            raise RecordsError(f"{where}: row {_first(text)}, column {column.name}: {values[text].iloc[0]!r} is not a number ({column.unit})")
        if infinite.any():
            raise RecordsError(f"{where}: row {int(np.flatnonzero(infinite)[0])}, column {column.name}: infinite; an unmeasured value is null")
        bad = number.isna()
    if column.required and bad.any():
        raise RecordsError(
            f"{where}: row {_first(bad)}, column {column.name}: null or NaN in a required column ({column.unit}); fill in the measured value or drop the run"
        )


def _first(mask: pd.Series) -> int:
    return int(np.flatnonzero(mask.to_numpy())[0])


def _cast(values: pd.Series, column: Column, where: str) -> pd.Series:
    dtype = "float64" if column.name in _EXACT else _DTYPES[column.kind]
    if column.kind == "int" and not column.required:
        dtype = "Int64"
    try:
        if column.kind == "int" and (pd.to_numeric(values.dropna()) % 1 != 0).any():
            raise ValueError("a fraction in a whole-number column")
        return values.astype(dtype)
    except (TypeError, ValueError) as error:
        raise RecordsError(f"{where}: column {column.name} should be {column.kind} ({column.unit}): {error}") from error


def _check_runs(table: pd.DataFrame, where: str) -> None:
    for name in ("run_id", "sweep"):
        shape = table[name].astype(str).str.fullmatch(NAME)
        if not shape.all():
            raise RecordsError(f"{where}: row {_first(~shape)}: {name} {table[name][~shape].iloc[0]!r} must match {NAME}")
    twice = table["run_id"].duplicated()
    if twice.any():
        raise RecordsError(f"{where}: row {_first(twice)}: run_id {table['run_id'][twice].iloc[0]} appears twice; run ids are unique")
    status = table["status"].isin(STATUSES)
    if not status.all():
        raise RecordsError(f"{where}: row {_first(~status)}: status {table['status'][~status].iloc[0]!r} is not one of {', '.join(STATUSES)}")
    positive = (table[["batch", "group", "updates_per_rollout", "lr", "samples"]] > 0).all(axis=1)
    if not positive.all():
        raise RecordsError(f"{where}: row {_first(~positive)}: batch, group, updates_per_rollout, lr and samples must be positive")


def schema_markdown() -> str:
    """SCHEMA.md of a records folder: every column with its kind, whether it may be null, and its unit."""
    lines = [f"# Records, schema version {SCHEMA_VERSION}", "", "Generated from `twoclocks.schema`; licence CC-BY-4.0. Unmeasured values are null."]
    for which, columns in TABLES.items():
        title = "`runs.parquet`: one row a run" if which == "runs" else "`curves/<sweep>.parquet`: at most 200 log-spaced rows a run"
        lines += ["", f"## {title}", "", "| column | kind | null | meaning and unit |", "|---|---|---|---|"]
        lines += [f"| {c.name} | {c.kind} | {'no' if c.required else 'yes'} | {c.unit.replace('|', chr(92) + '|')} |" for c in columns]
    lines += ["", "A curve row stands for the updates since the row before it: rates are means over them, counters and evaluations are the last value."]
    return "\n".join(lines) + "\n"
