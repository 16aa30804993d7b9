"""TensorBoard event files of any trainer (extra `tensorboard`): tags are the trainer's keys, every scalar is read."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import stores
from twoclocks.importers.log import Log, joined


def matches(path: Path) -> bool:
    """Whether a path is an event file; of the files of one folder only the first, which stands for all."""
    return "tfevents" in path.name and path == min(p for p in path.parent.iterdir() if "tfevents" in p.name)


def read(path: Path) -> list[Log]:
    """The run of one folder: all its event files together, every scalar (TensorBoard itself keeps 10,000 a tag).

    Raises
    ------
    RecordsError
        If the extra is not installed, or there are no scalars of a trainer.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise RecordsError(f"{path}: reading event files needs the extra: pip install 'twoclocks[tensorboard]'") from error
    folder = path.parent
    try:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        tags = events.Tags()["scalars"]
    except Exception as error:  # the reader raises several unrelated types for damaged files
        raise RecordsError(f"{folder}: not readable event files ({type(error).__name__}: {error})") from error
    series = {tag: events.Scalars(tag) for tag in tags if any(dialect.knows(tag) for dialect in stores.DIALECTS)}
    parts = [pd.DataFrame([(e.step, e.wall_time, e.value) for e in found], columns=["step", "seconds", tag]) for tag, found in series.items() if found]
    if not parts:
        raise RecordsError(f"{folder}: no scalar among {', '.join(tags[:6]) or 'none'} is a trainer's (train/reward, critic/score/mean ...)")
    notes: list[str] = []
    table = joined(parts, notes)
    # transformers logs at its global step, so that TensorBoard's step is the trainer's
    table["train/global_step"] = table["step"]
    name = folder.parent.parent.name if folder.parent.name == "runs" else folder.name
    log = stores.log_of(table, name=name or "run", store="tensorboard", where=str(folder), notes=notes, store_step="step")
    seconds = table.set_index("step")["seconds"]
    log.rows["seconds"] = (log.rows["step"].map(seconds) - seconds.min()).to_numpy()
    return [log]
