"""A schedule: which setting to run at which sample. A pure function of samples, saved as JSON with its provenance."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from twoclocks.errors import ScheduleError, SettingError
from twoclocks.setting import Setting

SCHEMA_VERSION = 1


def json_schema() -> dict[str, Any]:
    """JSON Schema of a saved schedule; the file is part of the package (`twoclocks/schedule.schema.json`)."""
    found: dict[str, Any] = json.loads(Path(__file__).with_name("schedule.schema.json").read_text())
    return found


def full_rate_samples(samples: ArrayLike, warmup: float) -> np.ndarray:
    """Completions at full learning rate that drift as far as `samples` completions with a linear lr warm-up of W.

    n - W/2 past the warm-up, n^2/(2W) within it: first-order drift is proportional to the lr.
    """
    n = np.asarray(samples, float)
    return n if warmup == 0 else np.where(n >= warmup, n - warmup / 2, n**2 / (2 * warmup))


def samples_of_full_rate(full_rate: ArrayLike, warmup: float) -> np.ndarray:
    """Inverse of `full_rate_samples`."""
    m = np.asarray(full_rate, float)
    return m if warmup == 0 else np.where(m >= warmup / 2, m + warmup / 2, np.sqrt(2 * warmup * m))


@dataclass(frozen=True)
class Stage:
    """A setting and the number of training completions to run it for."""

    setting: Setting
    samples: int


@dataclass(frozen=True)
class Schedule:
    """Stages run one after the other.

    Parameters
    ----------
    stages : tuple of Stage
        In order; each at least one optimizer update long.
    lr_warmup_samples : int
        Completions over which the learning rate rises linearly from 0. The same count at every batch.
    provenance : dict
        Where the schedule came from: constructor, clocks, run ids, versions. JSON-serialisable.

    Raises
    ------
    ScheduleError
        If there is no stage, or a stage is shorter than one update of its own batch.
    """

    stages: tuple[Stage, ...]
    lr_warmup_samples: int = 0
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.stages:
            raise ScheduleError("a schedule needs at least one stage")
        for number, stage in enumerate(self.stages):
            if stage.samples < stage.setting.batch:
                raise ScheduleError(f"stage {number}: {stage.samples} samples are less than one update of batch {stage.setting.batch}")
        if self.lr_warmup_samples < 0:
            raise ScheduleError(f"lr_warmup_samples={self.lr_warmup_samples}: must not be negative")

    @property
    def samples(self) -> int:
        """Total training completions."""
        return sum(stage.samples for stage in self.stages)

    def __call__(self, samples: float) -> Setting:
        """The setting of the update that begins at this sample count.

        Raises
        ------
        ScheduleError
            If samples is negative or at or past the end.
        """
        if not 0 <= samples < self.samples:
            raise ScheduleError(f"samples={samples}: the schedule covers 0 <= samples < {self.samples}")
        end = 0
        for stage in self.stages:
            end += stage.samples
            if samples < end:
                return stage.setting
        raise AssertionError("unreachable: samples < self.samples")

    def lr(self, samples: float) -> float:
        """Learning rate of the update that begins at this sample count.

        eta(n) = eta * min(1, (n + B/2) / W) with W = lr_warmup_samples: the linear ramp read at the middle of the
        update, so that the lr summed over the warm-up, per sample, is the same at every batch.
        """
        setting = self(samples)
        return setting.lr * self.warmup_share(samples, setting.batch)

    def warmup_share(self, samples: float, batch: int) -> float:
        """Share of the stage's learning rate that an update of this batch gets if it begins at this sample count."""
        middle = samples + batch / 2
        return 1.0 if middle >= self.lr_warmup_samples else middle / self.lr_warmup_samples

    def to_json(self) -> dict[str, Any]:
        """The schedule as plain JSON types, with `schema_version`."""
        plain: dict[str, Any] = json.loads(json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}))
        return plain

    @classmethod
    def from_json(cls, data: dict[str, Any], where: str = "schedule") -> Schedule:
        """Inverse of `to_json`.

        Raises
        ------
        ScheduleError
            Names the file, the field and the rule.
        """
        import jsonschema

        errors = sorted(jsonschema.Draft202012Validator(json_schema()).iter_errors(data), key=lambda e: list(e.path))
        if errors:
            path = "/".join(str(part) for part in errors[0].path) or "top level"
            raise ScheduleError(f"{where}: {path}: {errors[0].message}; write schedules with Schedule.save")
        try:
            stages = tuple(
                Stage(Setting(**{**s["setting"], "clip": None if s["setting"]["clip"] is None else tuple(s["setting"]["clip"])}), s["samples"])
                for s in data["stages"]
            )
        except SettingError as error:
            raise ScheduleError(f"{where}: {error}") from error
        return cls(stages, data["lr_warmup_samples"], data["provenance"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write JSON by temporary file and `os.replace`."""
        target = Path(path)
        temporary = target.with_name(target.name + ".tmp")
        temporary.write_text(json.dumps(self.to_json(), indent=2) + "\n")
        os.replace(temporary, target)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """Read a schedule written by `save`.

        Raises
        ------
        ScheduleError
            If the file is absent, not JSON, or not a schedule of this version.
        """
        try:
            data = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:  # ValueError: not JSON, or not text
            raise ScheduleError(f"{path}: not a readable schedule ({error})") from error
        return cls.from_json(data, str(path))

    def explain(self) -> str:
        """The schedule in words, why it was chosen, which budgets bind and at what price, the runner-up, and what to mind."""
        told = self.provenance
        lines = [told.get("reason"), *(told.get("explanation") or []), *(told.get("notes") or [])]
        return "\n".join([str(self), *(str(line) for line in lines if line)])

    def __str__(self) -> str:
        lines, start = [], 0
        for stage in self.stages:
            s = stage.setting
            clip = "none" if s.clip is None else f"[{1 - s.clip[0]:g}, {1 + s.clip[1]:g}]"
            lines.append(
                f"{start:>9,} to {start + stage.samples:>9,} samples: batch {s.batch} ({s.prompts} prompts a rollout x "
                f"{s.group}), {s.updates_per_rollout} updates a rollout, lr {s.lr:.3g}, ratio clip {clip}"
            )
            start += stage.samples
        return "\n".join(lines)


def constant(setting: Setting, samples: int, **kwargs: Any) -> Schedule:
    """One setting for the whole run."""
    return Schedule((Stage(setting, samples),), **kwargs)


def sqrt_switch(setting: Setting, batch: int, at: int, samples: int, **kwargs: Any) -> Schedule:
    """Switch to another batch at `at` samples with eta ~ sqrt(B): the drift rate stays."""
    return _switch(setting, setting.scaled(batch, 0.5), at, samples, **kwargs)


def fixed_lr_switch(setting: Setting, batch: int, at: int, samples: int, **kwargs: Any) -> Schedule:
    """Switch to another batch at `at` samples with the learning rate unchanged: the drift rate falls by sqrt(B/B0)."""
    return _switch(setting, setting.scaled(batch, 0.0), at, samples, **kwargs)


def seesaw(setting: Setting, at: int, samples: int, **kwargs: Any) -> Schedule:
    """Double the batch and divide lr by sqrt 2 at `at` samples (Seesaw, arXiv 2510.14717): the drift rate halves."""
    return _switch(setting, setting.scaled(2 * setting.batch, -0.5), at, samples, **kwargs)


def _switch(first: Setting, second: Setting, at: int, samples: int, **kwargs: Any) -> Schedule:
    return Schedule((Stage(first, at), Stage(second, samples - at)), **kwargs)
