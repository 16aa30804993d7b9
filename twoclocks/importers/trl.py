"""TRL and other transformers trainers: `trainer_state.json`, and the same keys in any store; a step is an optimizer update."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers.dialects import Dialect
from twoclocks.importers.log import Log

_TRAIN = {
    "learning_rate": "lr",
    "reward": "reward",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "kl": "kl_ref",
    "clip_ratio/low_mean": "clip_frac_low",
    "clip_ratio/high_mean": "clip_frac_high",
    "completions/mean_length": "length",
    "frac_reward_zero_std": "zero_std_frac",
    **{f"twoclocks/{name}": name for name in (
        "samples", "drift_abs", "drift_k3", "drift_m2", "ess", "ratio_max", "ratio_pos", "ratio_neg", "drift_cum_abs", "drift_cum_k3", "drift_end_abs",
        "drift_end_k3", "engine_mismatch", "inner_step", "update_norm", "distance", "update_cos",
    )},
}  # fmt: skip
_HOW = {"grad_norm": "last of the logged updates", "reward": "mean over the logged rollouts"}
# In trainer_state.json and MLflow the keys stand as they are; W&B, TensorBoard and trackio put train/ and eval/ before them
BARE = Dialect("trl", "update", ("step",), {**_TRAIN, "eval_reward": "heldout_acc", "_runtime": "seconds"}, aggregation=_HOW)
PREFIXED = Dialect(
    "trl",
    "update",
    ("train/global_step",),
    {**{f"train/{key}": name for key, name in _TRAIN.items()}, "eval/reward": "heldout_acc", "_runtime": "seconds"},
    store_step=False,
    aggregation=_HOW,
)


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
        state: Any = json.loads(path.read_text(encoding="utf-8-sig"))  # json reads NaN as it stands there
    except (OSError, ValueError, RecursionError) as error:
        raise RecordsError(f"{path}: not a readable trainer state ({error}); it may be truncated: use an older checkpoint's") from error
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list) or not all(isinstance(row, dict) for row in history):
        raise RecordsError(f"{path}: no log_history of rows; expected the trainer_state.json of a transformers checkpoint")
    # The closing summary is no update, and of the rest only what is known is kept: states hold dozens of keys
    keep = {"step", *BARE.names}
    table = pd.DataFrame([{k: row[k] for k in keep & row.keys()} for row in history if "train_runtime" not in row])
    if "step" not in table.columns or len(table) == 0:
        raise RecordsError(f"{path}: no logged step; train with logging_steps > 0")
    folder = path.parent.parent if path.parent.name.startswith("checkpoint-") else path.parent
    log = BARE.log(table, name=folder.name or "run", source="trl", where=str(path), notes=[])
    assert log is not None  # its axis is there
    return [log]
