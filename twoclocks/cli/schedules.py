"""`twoclocks show` and `twoclocks export`: a schedule in words, and in another trainer's keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twoclocks.cli import show
from twoclocks.cli.options import AsJson
from twoclocks.exporters import export
from twoclocks.schedule import Schedule

File = Annotated[Path, typer.Argument(help="schedule JSON")]


def show_schedule(schedule: File, as_json: AsJson = False) -> None:
    """Print a schedule in words, the reason for it, and what to mind."""
    found = Schedule.load(schedule)
    show.as_json(found.to_json()) if as_json else show.line(found.explain())


def export_schedule(
    schedule: File,
    to: Annotated[str, typer.Option(help="trl, verl, openrlhf, prime-rl, open-instruct, nemo-rl, areal, slime, ms-swift or axolotl")],
    processes: Annotated[int, typer.Option(min=1, help="data-parallel processes")] = 1,
    per_device: Annotated[int | None, typer.Option(min=1, help="completions per process and micro-step, where the trainer asks for it")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a schedule as another trainer's configuration, a fragment a stage."""
    found = export(Schedule.load(schedule), to, processes=processes, per_device=per_device)
    show.as_json(found.to_json()) if as_json else print(found)  # noqa: T201
