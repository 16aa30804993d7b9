"""verl's rollout dumps (`trainer.rollout_data_dir`): `<step>.jsonl`, a line a completion with input, output, score and step.

The only logs that say how many completions a rollout took and how many a prompt: both are counted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers.jsonl import SUFFIXES, first_row, objects
from twoclocks.importers.log import Log, number

FIELDS = {"input", "output", "score"}


def matches(path: Path) -> bool:
    """Whether a path is a dump; of the dumps of one folder only the first, which stands for all."""
    first = first_row(path)
    return first is not None and first.keys() >= FIELDS and path == min(_dumps(path.parent), key=_order, default=path)


def _dumps(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.endswith(SUFFIXES) and p.name.split(".")[0].isdecimal()]


def _order(path: Path) -> tuple[int, str]:
    return int(path.name.split(".")[0]), path.name


def read(path: Path) -> list[Log]:
    """The run of one folder of dumps: mean score a rollout, samples as counted, share of prompts whose scores are all equal.

    Raises
    ------
    RecordsError
        If a row lacks input, output or score, or the rollouts differ in size or in completions a prompt.
    """
    rows, sizes, groups, seen = [], set(), set(), 0
    for file in sorted(_dumps(path.parent), key=_order) or [path]:
        scores: dict[str, list[float]] = {}
        step = number(file.name.split(".")[0])
        for line, row in objects(file):
            if not row.keys() >= FIELDS:
                raise RecordsError(f"{file}: line {line} lacks {', '.join(sorted(FIELDS - row.keys()))}; expected verl's rollout dump")
            scores.setdefault(str(row["input"]), []).append(number(row["score"]))
            step = number(row.get("step", step))
        values = pd.Series([s for group in scores.values() for s in group])
        seen += len(values)
        sizes.add(len(values))
        groups |= {len(group) for group in scores.values()}
        equal = np.mean([len(set(group)) == 1 for group in scores.values()])
        rows.append({"step": step, "samples": float(seen), "reward": float(values.mean()), "zero_std_frac": float(equal)})
    if len(sizes) > 1:
        raise RecordsError(f"{path.parent}: rollouts of {min(sizes)} to {max(sizes)} completions; import stretches of one size apart")
    if len(groups) > 1:
        raise RecordsError(f"{path.parent}: prompts with {min(groups)} to {max(groups)} completions; the same prompt twice in a rollout is not supported")
    table = pd.DataFrame(rows)
    if table["step"].isna().any() or (table["step"].diff().dropna() <= 0).any():
        raise RecordsError(f"{path.parent}: the dumps' steps do not increase; expected one file a step")
    found = {"group": groups.pop(), "rollout": sizes.pop()}
    return [Log(path.parent.name, "verl-rollouts", str(path.parent), "rollout", table, settings=found, aggregation={"reward": "mean over the rollout"})]
