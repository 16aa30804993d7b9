"""Turn fitted clocks into schedules: presets for users, and the reason where none can be emitted.

A preset is emitted even where the runs contradict a clock's law; its notes say so, and `twoclocks show` prints them.
"""

from __future__ import annotations

import json
from pathlib import Path

from analysis.fits import rounded
from twoclocks.errors import TwoclocksError
from twoclocks.fitting import Clocks
from twoclocks.planner import plan
from twoclocks.schedule import Schedule

SAMPLES, SAFETY = 163_840, 0.8  # the longest horizon that was run


def schedules(clocks: dict[str, Clocks]) -> tuple[dict[str, Schedule], dict[str, str]]:
    """(emitted schedules, reasons for those that were refused), by group."""
    emitted, refused = {}, {}
    for name, found in clocks.items():
        try:
            made = plan(found, samples=SAMPLES, safety=SAFETY, accept_misfit=True)
        except TwoclocksError as error:
            refused[name] = str(error)
            continue
        emitted[name] = made
    return emitted, refused


def write(emitted: dict[str, Schedule], refused: dict[str, str], presets: Path) -> None:
    """One preset a schedule, and refused.json: what could not be emitted and why."""
    presets.mkdir(parents=True, exist_ok=True)
    for name, schedule in emitted.items():
        text = json.dumps(rounded(schedule.to_json()), indent=2) + "\n"
        (presets / f"{name}.json").write_text(text)
    (presets / "refused.json").write_text(json.dumps(refused, indent=2) + "\n")
