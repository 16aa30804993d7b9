"""Verifiable tasks: procedural problems with disjoint training and held-out splits, and an exact verifier.

A task is a module with `problems(split, count, seed) -> list[Problem]` and `verify(completion, answer) -> bool`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from twoclocks.errors import SettingError


@dataclass(frozen=True)
class Problem:
    """A prompt and the answer its verifier compares with."""

    prompt: str
    answer: str


def load(name: str) -> ModuleType:
    """The task module of this name.

    Raises
    ------
    SettingError
        If there is none; the message lists those there are.
    """
    from experiments.tasks import arithmetic

    tasks = {"arithmetic": arithmetic}
    if name not in tasks:
        raise SettingError(f"task={name!r}: unknown; choose one of {', '.join(sorted(tasks))}")
    return tasks[name]


def reward(task: ModuleType) -> Any:
    """The task's verifier as a TRL reward function: 1.0 for a verified completion, else 0.0."""

    def verified(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [float(task.verify(c, a)) for c, a in zip(completions, answer, strict=True)]

    return verified
