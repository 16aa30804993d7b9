"""`trainer_state.json` of TRL and transformers: the log history of a checkpoint; a step is an optimizer update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers.log import Log, one_row_a_step, renamed

NAMES = {
    "learning_rate": "lr",
    "reward": "reward",
    "eval_reward": "heldout_acc",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "clip_ratio/low_mean": "clip_frac_low",
    "clip_ratio/high_mean": "clip_frac_high",
    "completions/mean_length": "length",
    "frac_reward_zero_std": "zero_std_frac",
    **{f"twoclocks/{name}": name for name in (
        "samples", "drift_abs", "drift_k3", "drift_m2", "ess", "ratio_max", "ratio_pos", "ratio_neg", "drift_cum_abs", "drift_cum_k3", "drift_end_abs",
        "drift_end_k3", "engine_mismatch", "inner_step", "update_norm", "distance", "update_cos",
    )},
}  # fmt: skip


def matches(path: Path) -> bool:
    """Whether a path is this format."""
    return path.name == "trainer_state.json"


def read(path: Path) -> list[Log]:
    """The run of one checkpoint; its name is the folder that holds the checkpoints.

    Raises
    ------
    RecordsError
        If the file is not a trainer state.
    """
    try:
        state: Any = json.loads(path.read_text())  # json reads NaN as it stands there
    except (OSError, ValueError) as error:
        raise RecordsError(f"{path}: not a readable trainer state ({error}); it may be truncated: use an older checkpoint's") from error
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise RecordsError(f"{path}: no log_history of rows; expected the trainer_state.json of a transformers checkpoint")
    rows = [row for row in history if "train_runtime" not in row]  # the closing summary is no update
    table = pd.DataFrame(rows)
    if "step" not in table.columns or len(table) == 0:
        raise RecordsError(f"{path}: no logged step; train with logging_steps > 0")
    notes: list[str] = []
    found = renamed(table, NAMES).assign(step=pd.to_numeric(table["step"], errors="coerce"))
    folder = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
    return [
        Log(
            name=folder.name or "run",
            source="trl",
            where=str(path),
            step="update",
            rows=one_row_a_step(found, notes),
            aggregation={"grad_norm": "last of the logged updates", "reward": "mean over the logged rollouts"},
            notes=notes,
        )
    ]
