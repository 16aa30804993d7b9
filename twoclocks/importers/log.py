"""What every importer hands over: a run's rows as its trainer logged them, in canonical names, and what is known of its setting."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

Step = Literal["update", "rollout", "samples"]
_TENSOR = re.compile(r"tensor\(\s*([^,)]+)")


@dataclass
class Log:
    """One run as read.

    Attributes
    ----------
    name : str
        The run's name: data, never a path.
    source : str
        Format, such as "trl" or "verl".
    where : str
        File, for messages.
    step : {"update", "rollout", "samples"}
        What one step of the log counts.
    rows : DataFrame
        Column `step` and canonical columns (reward, heldout_acc, lr, drift_k3 ...; `samples` where the log counts them itself).
    settings : dict
        Fields of the run's setting that the log holds: completions or prompts, group, updates_per_rollout, lr, clip_low ...
    aggregation : dict
        Canonical column -> how the source made one value of a step.
    notes : list of str
        Repairs, in words.
    """

    name: str
    source: str
    where: str
    step: Step
    rows: pd.DataFrame
    settings: dict[str, Any] = field(default_factory=dict)
    aggregation: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


LARGEST = float(np.finfo(np.float32).max)  # records keep measurements as float32


def number(value: Any) -> float:
    """A logged value as a number, "tensor(0.5, ...)" too; NaN for null, "", text, infinities, and what float32 cannot hold."""
    if value is None or isinstance(value, bool | list | dict):
        return float(value) if isinstance(value, bool) else math.nan
    if isinstance(value, str):
        tensor = _TENSOR.match(value.strip())
        value = tensor.group(1) if tensor else value
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return found if abs(found) <= LARGEST else math.nan


def numbers(values: pd.Series) -> pd.Series:
    """`number` over a column."""
    plain = values.dtype.kind in "iuf"
    found = values.astype(float) if plain else pd.Series([number(v) for v in values.astype(object)], index=values.index, dtype=float)
    return found.where(found.abs() <= LARGEST)


def renamed(table: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """The columns that a mapping source key -> canonical name knows, as numbers; the first of several sources of a name wins."""
    found: dict[str, pd.Series] = {}
    for key, name in names.items():
        if key in table.columns:
            values = numbers(table[key])
            found[name] = found[name].fillna(values) if name in found else values
    return pd.DataFrame(found, index=table.index)


def one_row_a_step(rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Rows in the order of steps: a step that goes back begins a resumed segment, which replaces earlier rows at or past it.

    Rows of one step (a source logs training and evaluation apart) are joined: the last value of each column counts.
    """
    placed = rows["step"].notna() & (rows["step"] >= 0)
    if not placed.all():
        notes.append(f"{int((~placed).sum())} rows without a step were left out")
    rows = rows[placed].reset_index(drop=True)
    step = rows["step"].to_numpy(float)
    if len(step) and (np.diff(step) > 0).all():
        return rows
    begins = np.flatnonzero(np.diff(step, prepend=-math.inf) < 0)
    # A row survives if no later segment begins at or before its step
    following = np.full(len(step), math.inf)
    following[begins] = step[begins]
    next_start = np.append(np.minimum.accumulate(following[::-1])[::-1][1:], math.inf) if len(step) else following
    keep = step < next_start
    dropped = int((~keep).sum())
    if dropped:
        notes.append(f"{dropped} rows of earlier attempts, at or past the step of a resume, were replaced by the later attempt's")
    return rows[keep].groupby("step", sort=True).last().reset_index()


def joined(parts: list[pd.DataFrame], notes: list[str]) -> pd.DataFrame:
    """One table of series that a store keeps apart (columns step, seconds and one key each), every one of them segmented by itself."""
    said: list[str] = []
    clean = []
    for part in parts:
        own: list[str] = []
        clean.append(one_row_a_step(part, own).set_index("step"))
        said = max(said, own, key=len)  # a resume shows in every series: say it once
    notes += said
    seconds = pd.concat([part["seconds"] for part in clean]).groupby(level=0).min()
    return pd.concat([part.drop(columns="seconds") for part in clean], axis=1).sort_index().assign(seconds=seconds).reset_index(names="step")
