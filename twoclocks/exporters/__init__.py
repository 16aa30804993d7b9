"""A schedule as configurations of other trainers: one a stage, in the trainer's own keys and units, with what a resume must do.

Only TRL (through ScheduledGRPOTrainer) changes its batch within a run. Elsewhere a stage is a run that resumes the one before it:
the optimizer's state is restored, the learning-rate scheduler's is not.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from twoclocks.errors import ScheduleError
from twoclocks.exporters.targets import TARGETS, StagePlan
from twoclocks.schedule import Schedule
from twoclocks.timetable import Timetable


@dataclass(frozen=True)
class StageConfig:
    """One stage for one trainer.

    Attributes
    ----------
    name : str
    fields : dict
        The trainer's keys, as its configuration or command line spells them.
    conditions : list of str
        What must hold, in the trainer's terms.
    notes : list of str
        Units of steps, and what to do when resuming.
    """

    name: str
    fields: dict[str, Any]
    conditions: list[str]
    notes: list[str]


@dataclass(frozen=True)
class Export:
    """A schedule for one trainer; prints as commented fragments."""

    to: str
    stages: list[StageConfig]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {"to": self.to, "stages": [vars(stage) for stage in self.stages]}

    def __str__(self) -> str:
        lines = []
        for number, stage in enumerate(self.stages):
            lines.append(f"# {self.to}, {stage.name}" + (": start from the checkpoint of the stage before" if number else ""))
            lines += [_written(key, value) for key, value in stage.fields.items()]
            lines += [f"# must hold: {condition}" for condition in stage.conditions]
            lines += [f"# note: {note}" for note in stage.notes]
            lines.append("")
        return "\n".join(lines)


def _written(key: str, value: Any) -> str:
    if key.startswith("--"):
        return f"{key} {value}"
    return f"{key}={value if isinstance(value, str) else json.dumps(value)}"


def export(schedule: Schedule, to: str, *, processes: int = 1, per_device: int | None = None) -> Export:
    """Per-stage configurations for a trainer.

    Parameters
    ----------
    schedule : Schedule
    to : str
        trl, verl, openrlhf, prime-rl, open-instruct, nemo-rl, areal, slime, ms-swift or axolotl.
    processes : int
        Data-parallel processes, where the trainer's keys count per process.
    per_device : int, optional
        Completions per process and micro-step, likewise; default all of an update's.

    Raises
    ------
    ScheduleError
        If the trainer is unknown or can't run a stage as it is (a batch that is no whole number of prompts, several updates
        per rollout where it takes one).
    SettingError
        If a batch does not fit the micro-batch and processes.
    """
    if to not in TARGETS:
        raise ScheduleError(f"to={to!r}: no such exporter; choose one of {', '.join(TARGETS)}")
    table = Timetable(schedule)
    borders = [*(r.index for r in table.switches()), len(table.rollouts)]
    stages, first = [], 0
    for number, border in enumerate(borders):
        begun, last = table.rollouts[first], table.rollouts[border - 1]
        setting = begun.setting
        warm = schedule.lr_warmup_samples if number == 0 else 0
        plan = StagePlan(
            number=number,
            setting=setting,
            rollouts=border,
            updates=last.update + last.updates,
            samples=last.samples + last.updates * setting.batch,
            warmup_updates=math.ceil(warm / setting.batch),
            warmup_rollouts=math.ceil(warm / setting.rollout),
            processes=processes,
            per_device=per_device,
        )
        fields, conditions, notes = TARGETS[to](plan)
        name = f"stage {number}: {begun.samples:,} to {plan.samples:,} completions, batch {setting.batch}, lr {setting.lr:.4g}"
        stages.append(StageConfig(name, fields, conditions, notes))
        first = border
    return Export(to, stages)
