"""How each trainer names what it logs, whichever store (W&B, TensorBoard, trackio, MLflow, a table) the log is kept in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from twoclocks.importers.log import Log, Step, numbers, one_row_a_step, renamed


@dataclass(frozen=True)
class Dialect:
    """One trainer's keys.

    Attributes
    ----------
    name : str
        The trainer.
    step : {"update", "rollout", "samples"}
        What its step counts.
    axes : tuple of str
        Columns that hold that step, first filled wins; without one the store's own step counts, if `store_step`.
    names : dict of str -> str
        Key -> canonical name.
    marks : tuple of str
        Keys that no other trainer logs.
    store_step : bool
        Whether the step of the store (W&B's `_step`, TensorBoard's) is the trainer's own; with transformers it counts log calls.
    evaluations : str
        Regular expression of held-out accuracy keys, where names differ by dataset.
    aggregation : dict of str -> str
        Canonical name -> how the trainer made one value of a step.
    """

    name: str
    step: Step
    axes: tuple[str, ...]
    names: dict[str, str]
    marks: tuple[str, ...] = ()
    store_step: bool = True
    evaluations: str = ""
    aggregation: dict[str, str] = field(default_factory=dict)

    def knows(self, key: str) -> bool:
        """Whether a key is one of this trainer's."""
        return key in self.names or key in self.axes or key in self.marks or bool(self.evaluations and re.fullmatch(self.evaluations, key))

    def log(self, table: pd.DataFrame, *, name: str, source: str, where: str, notes: list[str], store_step: str | None = None) -> Log | None:
        """A run from a table of this trainer's keys; None if it has no step.

        Parameters
        ----------
        store_step : str, optional
            Column with the store's own step.
        """
        axes = [axis for axis in (*self.axes, *([store_step] if store_step and self.store_step else [])) if axis in table.columns]
        if not axes:
            return None
        names = dict(self.names)
        tests = sorted(str(c) for c in table.columns if self.evaluations and re.fullmatch(self.evaluations, str(c)))
        if tests:
            names[tests[0]] = "heldout_acc"
            if len(tests) > 1:
                notes.append(f"heldout_acc is {tests[0]}; also logged: {', '.join(tests[1:])}")
        step = numbers(table[axes[0]])
        for axis in axes[1:]:
            step = step.fillna(numbers(table[axis]))
        rows = renamed(table, names).assign(step=step)
        measured = rows.drop(columns=["step", "seconds", "step_seconds"], errors="ignore")
        rows = one_row_a_step(rows[measured.notna().any(axis=1)], notes)
        if "step_seconds" in rows:
            rows["seconds"] = rows.pop("step_seconds").fillna(0).cumsum()
        return Log(name, source, where, self.step, rows, aggregation=dict(self.aggregation), notes=notes)


def recognised(dialects: Iterable[Dialect], keys: Iterable[str]) -> Dialect | None:
    """The trainer that logs such keys: by a key that is its alone, else the one that knows most of them; None if none knows two."""
    keys = list(map(str, keys))
    everyone = list(dialects)
    for dialect in everyone:
        if any(key in dialect.marks for key in keys):
            return dialect
    known = [sum(map(dialect.knows, keys)) for dialect in everyone]
    best = max(range(len(everyone)), key=lambda i: known[i])
    return everyone[best] if known[best] >= 2 else None
