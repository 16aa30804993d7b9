"""verl: the `file` logger's lines {"step": n, "data": {...}}, and the same keys in any store; a step is a rollout.

Its `variance_proxy` keys are left out: they set squared gradient norms of parameter space against energies of logit space,
whose ratio is no gradient-noise scale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers.dialects import Dialect
from twoclocks.importers.jsonl import first_row, objects, stem
from twoclocks.importers.log import Log

_MEAN = "mean over mini-batches of the rollout"
DIALECT = Dialect(
    "verl",
    "rollout",
    ("training/global_step",),
    {
        "critic/score/mean": "reward",
        "critic/rewards/mean": "reward",
        "actor/lr": "lr",
        "actor/grad_norm": "grad_norm",
        "actor/ppo_kl": "drift_k1",
        "actor/pg_clipfrac": "clip_frac_high",
        "actor/pg_clipfrac_lower": "clip_frac_low",
        "actor/kl_loss": "kl_ref",
        "actor/entropy": "entropy",
        "actor/entropy_loss": "entropy",  # an entropy named loss is an entropy
        "response_length/mean": "length",
        "timing_s/step": "step_seconds",
    },
    marks=("critic/score/mean", "critic/rewards/mean", "actor/pg_loss", "actor/ppo_kl"),
    evaluations=r"val-core/.*/mean(@|_at_)\d+",
    aggregation=dict.fromkeys(("grad_norm", "clip_frac_high", "clip_frac_low", "entropy", "lr", "drift_k1", "kl_ref"), _MEAN),
)


def matches(path: Path) -> bool:
    """Whether a path is a verl log: JSON lines whose first line has step and data."""
    first = first_row(path)
    return first is not None and set(first) == {"step", "data"} and isinstance(first["data"], dict)


def read(path: Path) -> list[Log]:
    """The run of one file.

    Raises
    ------
    RecordsError
        If a line other than the last is not {"step", "data"}.
    """
    rows: list[dict[str, Any]] = []
    for number, row in objects(path):
        if not isinstance(row.get("data"), dict) or "step" not in row:
            raise RecordsError(f"{path}: line {number} is no verl row (step and data); remove the damaged line")
        rows.append({**row["data"], "step": row["step"]})
    notes = ["a run that verl resumed has lost the rows before: its file logger starts anew"]
    log = DIALECT.log(pd.DataFrame(rows), name=stem(path), source="verl", where=str(path), notes=notes, store_step="step")
    assert log is not None  # the step is there
    return [log]
