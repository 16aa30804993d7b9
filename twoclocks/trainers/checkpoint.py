"""What a checkpoint needs beyond the Trainer's own files: position, schedule, the rollout under way, and a marker of completeness.

`twoclocks.json` is written last, by temporary file and `os.replace`: a checkpoint without it is incomplete and never resumed
from. Buffers are safetensors and JSON; nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from twoclocks.errors import ScheduleError

MARKER = "twoclocks.json"
SUPERSEDED = "twoclocks.superseded.json"
VERSION = 1
NEEDED = ("trainer_state.json", "optimizer.pt", "scheduler.pt")  # of the Trainer's own files, where it writes them itself


def write_rollout(folder: Path, process: int, slices: list[dict[str, Any]]) -> None:
    """Save this process's micro-batches of the rollout under way.

    Raises
    ------
    ScheduleError
        If they hold something other than tensors (images): save at rollout borders then.
    """
    from safetensors.torch import save_file

    tensors = {}
    for k, part in enumerate(slices):
        for name, value in part.items():
            if not isinstance(value, torch.Tensor):
                raise ScheduleError(f"checkpoint inside a rollout: {name} is no tensor; set save_steps to a multiple of the updates per rollout")
            tensors[f"{k}/{name}"] = value.detach().cpu().clone()  # slices share memory
    folder.mkdir(parents=True, exist_ok=True)  # a process may be here before the one that writes the model
    save_file(tensors, folder / f"rollout-{process}.safetensors")


def read_rollout(folder: Path, process: int, device: torch.device) -> list[dict[str, torch.Tensor]]:
    """Inverse of `write_rollout`."""
    from safetensors.torch import load_file

    path = folder / f"rollout-{process}.safetensors"
    if not path.exists():
        raise ScheduleError(f"{path}: missing, and the checkpoint lies inside a rollout; resume from an older one")
    slices: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(path).items():
        number, name = key.split("/", 1)
        slices.setdefault(int(number), {})[name] = value.to(device)
    return [slices[k] for k in sorted(slices)]


def finish(folder: Path, position: dict[str, Any]) -> None:
    """Write the marker that makes a checkpoint complete."""
    temporary = folder / (MARKER + ".tmp")
    with temporary.open("w") as file:
        json.dump({"version": VERSION, **position}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MARKER)


def complete(root: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    found = [p for p in root.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name) and (p / MARKER).exists()]
    return sorted(found, key=lambda p: int(p.name.split("-")[1]))


def newest(root: Path) -> Path:
    """The newest complete checkpoint.

    Raises
    ------
    ScheduleError
        If there is none.
    """
    found = complete(root)
    if not found:
        raise ScheduleError(f"{root}: no complete checkpoint to resume from (a complete one holds {MARKER})")
    return found[-1]


def read(folder: Path, *, processes: int, micro: int) -> dict[str, Any]:
    """Position and schedule of a complete checkpoint.

    Raises
    ------
    ScheduleError
        If it is incomplete, of another version, or was written by another layout of processes and micro-batches.
    """
    try:
        saved: dict[str, Any] = json.loads((folder / MARKER).read_text())
    except (OSError, ValueError) as error:
        raise ScheduleError(f"{folder}: not a complete checkpoint of ScheduledGRPOTrainer ({error}); resume from an older one") from error
    missing = [name for name in NEEDED if not (folder / name).exists() and not list(folder.glob("global_step*"))]  # DeepSpeed has its own
    if missing and not list(folder.glob("*optimizer*")):
        raise ScheduleError(f"{folder}: {', '.join(missing)} missing; without the optimizer's state a resume would be another run")
    if saved.get("version") != VERSION:
        raise ScheduleError(f"{folder / MARKER}: version {saved.get('version')}; this release reads version {VERSION}")
    for name, now in (("processes", processes), ("per_device_train_batch_size", micro)):
        if saved["inside_rollout"] and saved[name] != now:
            raise ScheduleError(
                f"{folder}: written inside a rollout with {name}={saved[name]}, resumed with {now}; use the same, or a checkpoint at a rollout border"
            )
    return saved


def supersede(root: Path, update: int) -> None:
    """Set aside complete checkpoints past the one that a run goes on from: they are kept, and no longer resumed from or rotated."""
    for later in complete(root):
        if int(later.name.split("-")[1]) > update:
            os.replace(later / MARKER, later / SUPERSEDED)


def rotate(root: Path, limit: int | None, best: str | None) -> None:
    """Delete the oldest complete checkpoints beyond a limit, but the best one; marker first, so that none is half there and complete."""
    if not limit or limit < 1:
        return
    for old in complete(root)[:-limit]:
        if best is not None and old.resolve() == Path(best).resolve():
            continue
        (old / MARKER).unlink()
        shutil.rmtree(old)
