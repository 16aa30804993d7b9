"""A run writes its own record: `curve.jsonl` as it goes, `run.json` at the start and at the end."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from experiments.config import RunConfig
from twoclocks import records, schema

# TRL's log keys -> columns of the curve table; our meter's carry the column's name behind `twoclocks/`
LOGGED = {
    "learning_rate": "lr",
    "reward": "reward",
    "entropy": "entropy",
    "grad_norm": "grad_norm",
    "completions/mean_length": "length",
    "frac_reward_zero_std": "zero_std_frac",
    "probe/k3": "probe_k3",
    "probe/gain": "probe_gain",
}
METERED = "twoclocks/"
COLUMNS = {c.name: c for c in schema.CURVE_COLUMNS}


def device_name() -> str:
    """The accelerator's or processor's own name."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu ({platform.machine()}, {os.cpu_count()} cores)"


def git_sha() -> str:
    """Commit of the code: GIT_SHA where the history does not travel with the tree, else git's word, `-dirty` if changed."""
    if os.environ.get("GIT_SHA"):
        return os.environ["GIT_SHA"]
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


def versions() -> dict[str, str]:
    """Versions of what computes a run."""
    names = ("torch", "transformers", "trl", "accelerate", "datasets", "numpy")
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in names}}


def run_row(config: RunConfig, run_id: str) -> dict[str, Any]:
    """The run's row of the run table as known at its start."""
    setting = config.schedule.stages[0].setting
    clip = setting.clip or (None, None)
    return {
        "schema_version": schema.SCHEMA_VERSION,
        "run_id": run_id,
        "sweep": config.sweep,
        "testbed": config.testbed,
        "model": config.model.name,
        "task": config.task.name,
        "device": device_name(),
        "status": "running",
        "collapsed": None,
        "seed": config.seed,
        "batch": setting.batch,
        "group": setting.group,
        "updates_per_rollout": setting.updates_per_rollout,
        "lr": setting.lr,
        "drift_rate": setting.drift_rate,
        "clip_low": clip[0],
        "clip_high": clip[1],
        "lr_warmup_samples": config.lr_warmup_samples,
        "samples": config.samples,
        "samples_done": 0,
        "start_acc": None,
        "heldout_problems": config.evaluation.problems,
        "max_grad_norm": config.trl.get("max_grad_norm", 1.0) or None,  # 0 switches clipping off
        "dtype": config.model.dtype,
        "seconds": None,
        "git_sha": git_sha(),
        "versions": json.dumps(versions(), sort_keys=True),
        "config": json.dumps(asdict(config), sort_keys=True),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_run(folder: Path, row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Replace `run.json` as a whole; returns the new row."""
    row = {**row, **changes}
    temporary = folder / "run.json.tmp"
    temporary.write_text(json.dumps(row, indent=1) + "\n")
    os.replace(temporary, folder / "run.json")
    return row


def samples_done(folder: Path) -> int:
    """Training completions that the live curve has reached; 0 before its first row."""
    path = folder / "curve.jsonl"
    samples = records.read_curve(path)["samples"] if path.exists() else []
    return int(max(samples, default=0))


class Recorder(TrainerCallback):
    """Writes one curve row per optimizer update and evaluates on the configured grid.

    Parameters
    ----------
    folder : Path
        Run folder.
    row : dict
        The run's row; kept up to date in `self.row`.
    trainer : ScheduledGRPOTrainer
        Its timetable says what the run follows, its meter holds the ratio histogram.
    evaluate : callable
        Update count -> held-out accuracies of the policy as it is, by curve column.
    """

    def __init__(self, folder: Path, row: dict[str, Any], config: RunConfig, trainer: Any, evaluate: Callable[[int], dict[str, float]]) -> None:
        self.folder, self.row, self.evaluate, self.timetable, self.meter = folder, row, evaluate, trainer.timetable, trainer.meter
        self.due = config.evaluations()
        self.spent = 0.0  # seconds of training only
        self.attempt = 0
        self._resumed = time.perf_counter()
        self._pending: list[dict[str, Any]] = []

    def pause(self) -> None:
        """Stop the training clock (an evaluation or probe begins)."""
        self.spent += time.perf_counter() - self._resumed

    def resume(self) -> None:
        """Start the training clock again."""
        self._resumed = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Work that is not training."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        path = self.folder / "curve.jsonl"
        if path.exists():  # an attempt before this one was killed
            before = records.read_curve(path)
            self.attempt = int(before["attempt"].max()) + 1
            kept = before[before["update"] <= state.global_step]
            self.spent = float(kept["seconds"].max()) if len(kept) else 0.0
        if state.global_step == 0:
            start = self.evaluate(0)
            self.row = write_run(self.folder, self.row, start_acc=start["heldout_acc"])
            self._write(0, start, border=True)
        done = self.timetable.samples_before(state.global_step)
        self.due = [n for n in self.due if n > done]
        self.resume()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        if "train_runtime" in logs:  # TRL's closing summary, not an update
            return
        self.pause()
        update = state.global_step
        values = {column: logs[key] for key, column in LOGGED.items() if logs.get(key) is not None}
        values |= {key.removeprefix(METERED): v for key, v in logs.items() if key.startswith(METERED) and key.removeprefix(METERED) in COLUMNS}
        if self.meter.ratio_hist is not None:
            values["ratio_hist"] = self.meter.ratio_hist
        if "grad_norm" in values and args.max_grad_norm:
            values["grad_clipped"] = float(values["grad_norm"] > args.max_grad_norm)
        if self.due and self.timetable.samples_before(update) >= self.due[0]:
            values |= self.evaluate(update)
            self.due = [n for n in self.due if n > self.timetable.samples_before(update)]
        rollout = self.timetable.rollout(update - 1)
        # Rows up to a checkpoint must be on disk before it is: a killed run would not write them again
        self._write(update, values, border=update == rollout.update + rollout.updates or control.should_save)
        self.resume()

    def _write(self, update: int, values: dict[str, Any], *, border: bool) -> None:
        rollout = self.timetable.rollout(max(0, update - 1))
        generated = sum(r.setting.rollout for r in self.timetable.rollouts[: rollout.index + 1]) if update else 0
        counters = {
            "run_id": self.row["run_id"],
            "attempt": self.attempt,
            "update": update,
            "samples": self.timetable.samples_before(update),
            "samples_generated": generated,
            "rollout": rollout.index + 1 if update else 0,
            "batch": rollout.setting.batch,
            "seconds": self.spent,
        }
        row = {name: None for name in COLUMNS} | {name: _measured(name, v) for name, v in values.items()} | counters
        self._pending.append(row)
        if border:
            self._flush()

    def finish(self) -> None:
        """Write what is pending and close the run's row as finished."""
        self._flush()
        done = samples_done(self.folder)
        self.row = write_run(self.folder, self.row, status="finished", samples_done=done, seconds=round(self.spent, 3))

    def _flush(self) -> None:
        records.append_jsonl(self.folder / "curve.jsonl", self._pending)
        self._pending = []


def _measured(name: str, value: Any) -> Any:
    """A value as its column keeps it; what is not finite was not measured."""
    if COLUMNS[name].kind == "str":
        return value
    number = float(value)
    if not math.isfinite(number):
        return None
    return int(number) if COLUMNS[name].kind == "int" else number
