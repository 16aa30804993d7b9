"""One run's configuration: composed by Hydra, frozen here, expanded by keyword into TRL's GRPOConfig."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments import tasks
from twoclocks import schedule
from twoclocks.errors import SettingError
from twoclocks.schedule import Schedule
from twoclocks.setting import Setting, scaled_lr


@dataclass(frozen=True)
class ModelConfig:
    """Name for the records, and what `experiments.models.load` takes."""

    name: str
    path: str
    tokenizer: str | None = None
    dtype: str = "float32"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class TaskConfig:
    """Task name, longest completion in tokens, and an optional limit on training problems."""

    name: str
    max_new_tokens: int
    train_problems: int | None = None


@dataclass(frozen=True)
class SettingConfig:
    """`lr` is quoted at `lr_batch`; the run's own is lr * (batch/lr_batch)^lr_exponent, computed by `twoclocks.setting.scaled_lr`."""

    batch: int
    lr: float
    lr_batch: int
    lr_exponent: float
    group: int
    updates_per_rollout: int
    clip: tuple[float, float] | None


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out problems, and a log grid of sample counts: first, then at least `ratio` apart, on multiples of `first`."""

    problems: int
    first: int
    ratio: float


@dataclass(frozen=True)
class ProbeConfig:
    """Every how many updates to probe (0: never), on how many held-out prompts (one group each)."""

    every: int
    prompts: int


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. `trl` holds further GRPOConfig fields; unknown ones make GRPOConfig raise.

    `generation_chunk`: most sequences of one generate call; `save_every`: updates between checkpoints, 0 for none.
    """

    sweep: str
    testbed: str
    seed: int
    samples: int
    lr_warmup_samples: int
    model: ModelConfig
    task: TaskConfig
    setting: SettingConfig
    evaluation: EvaluationConfig
    probe: ProbeConfig
    micro_batch: int | None = None
    generation_chunk: int | None = None
    save_every: int = 0
    trl: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunConfig:
        """Build and check a configuration.

        Raises
        ------
        SettingError
            If a key is unknown or missing, the setting is illegal, or there are fewer prompts than one rollout needs.
        """
        parts = {
            "model": ModelConfig, "task": TaskConfig, "setting": SettingConfig, "evaluation": EvaluationConfig, "probe": ProbeConfig,
        }  # fmt: skip
        try:
            nested = {name: part(**data[name]) for name, part in parts.items()}
            config = cls(**{**data, **nested})
            config.check()
        except (TypeError, KeyError, IndexError, ZeroDivisionError) as error:
            raise SettingError(f"run configuration: {error}; see experiments/conf/train.yaml for the keys and their kinds") from error
        return config

    def check(self) -> None:
        """Raise SettingError where the run could not do what it says."""
        tasks.load(self.task.name)
        setting, limit = self.schedule.stages[0].setting, self.task.train_problems
        if limit is not None and limit < setting.prompts:
            raise SettingError(
                f"task.train_problems={limit}: one rollout needs {setting.prompts} prompts "
                f"({setting.rollout} completions in groups of {setting.group}); TRL would train on nothing and exit with success"
            )
        if self.samples % setting.rollout:
            raise SettingError(f"samples={self.samples} is not a whole number of rollouts of {setting.rollout} completions")
        if self.evaluation.first < 1 or self.evaluation.ratio < 1:
            raise SettingError(f"evaluation.first={self.evaluation.first}, ratio={self.evaluation.ratio}: must be at least 1")
        self.evaluations()
        setting.to_trl(per_device=self.micro_batch)

    @property
    def schedule(self) -> Schedule:
        """The constant schedule this run follows."""
        s = self.setting
        clip = None if s.clip is None else (float(s.clip[0]), float(s.clip[1]))
        lr = scaled_lr(s.lr, s.lr_batch, s.batch, s.lr_exponent)
        setting = Setting(batch=s.batch, lr=lr, group=s.group, updates_per_rollout=s.updates_per_rollout, clip=clip)
        return schedule.constant(setting, self.samples, lr_warmup_samples=self.lr_warmup_samples)

    def evaluations(self) -> list[int]:
        """Sample counts at which held-out accuracy is measured: a log grid that every batch can hit exactly or nearly."""
        grid, e = [], self.evaluation
        while not grid or grid[-1] < self.samples:
            target = e.first if not grid else max(grid[-1] + e.first, round(grid[-1] * e.ratio / e.first) * e.first)
            grid.append(min(target, self.samples))
        return grid

    def key(self) -> str:
        """Hash of the configuration: two runs with the same key are the same run."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
