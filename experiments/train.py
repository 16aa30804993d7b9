"""One GRPO run: `python -m experiments.train +run=smoke setting.batch=128`.

Hydra composes, `RunConfig` freezes and checks, TRL trains, the run writes its own record. How it differs from a plain
GRPOTrainer run: lr warm-up is counted in samples, old log-probabilities are kept so that drift can be measured
(they exist whenever S > 1), and held-out greedy accuracy is taken at fixed sample counts.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL pings a server when a trainer is built

import json
import sys
import traceback
import uuid
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.config import RunConfig
from twoclocks.errors import TwoclocksError


def new_folder(root: Path, sweep: str) -> Path:
    """A run folder that did not exist before; its name is the run id."""
    folder = root / f"{sweep}-{uuid.uuid4().hex[:12]}"
    folder.mkdir(parents=True, exist_ok=False)
    return folder


def grpo_config(config: RunConfig, folder: Path) -> Any:
    """TRL's own configuration of this run: the setting's fields, the house fields, then `config.trl` by keyword."""
    import torch
    from trl import GRPOConfig

    setting = config.schedule.stages[0].setting
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=config.samples // setting.batch,
        max_completion_length=config.task.max_new_tokens,
        seed=config.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,  # the default replaces NaN by a running mean: a diverged run would look healthy
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        **setting.to_trl(per_device=config.micro_batch),
        **config.trl,
    )


def build(config: RunConfig, folder: Path, row: dict[str, Any]) -> tuple[Any, Any]:
    """Trainer and recorder of a run whose row is written."""
    import torch
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback

    from experiments import models, tasks
    from experiments.evaluate import accuracy
    from experiments.probe import Probe
    from experiments.recorder import Recorder
    from twoclocks.trainers import MeteredGRPOTrainer

    class WarmupInSamples(MeteredGRPOTrainer):
        """Learning rate as the schedule says, a pure function of the update index."""

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            schedule, setting = config.schedule, config.schedule.stages[0].setting
            last = num_training_steps - 1  # the scheduler steps once more after the last update
            rule = lambda update: schedule.lr(min(update, last) * setting.batch) / setting.lr  # noqa: E731
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, rule)
            return self.lr_scheduler

    task, setting = tasks.load(config.task.name), config.schedule.stages[0].setting
    needed = config.samples // setting.group
    train = task.problems("train", min(needed, config.task.train_problems or needed), seed=config.seed)
    aside = task.problems("heldout", config.evaluation.problems + config.probe.prompts, seed=0)
    heldout, probed = aside[: config.evaluation.problems], aside[config.evaluation.problems :]
    m = config.model
    model, tokenizer = models.load(m.path, tokenizer=m.tokenizer, dtype=m.dtype, trust_remote_code=m.trust_remote_code)
    trainer = WarmupInSamples(
        model=model,
        reward_funcs=tasks.reward(task),
        args=grpo_config(config, folder),
        train_dataset=Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in train]),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    recorder = Recorder(folder, row, config, lambda: accuracy(model, tokenizer, task, heldout, config.task.max_new_tokens))
    trainer.add_callback(recorder)
    if config.probe.every:
        probe = Probe(trainer, tokenizer, task, probed, every=config.probe.every, setting=setting, max_new_tokens=config.task.max_new_tokens, recorder=recorder)
        trainer.add_callback(probe)
    return trainer, recorder


def run(config: RunConfig, root: Path) -> Path:
    """Train one configuration in a new run folder and return the folder; a failure is recorded, then raised."""
    from experiments.recorder import run_row, samples_done, write_run

    folder = new_folder(root, config.sweep)
    row = write_run(folder, run_row(config, folder.name))
    try:
        trainer, recorder = build(config, folder, row)
        trainer.train()
        recorder.finish()
    except Exception:
        (folder / "error.txt").write_text(traceback.format_exc())
        row = json.loads((folder / "run.json").read_text())  # the recorder may have added to it
        write_run(folder, row, status="failed", samples_done=samples_done(folder))
        raise
    return folder


def run_config(composed: DictConfig) -> tuple[RunConfig, Path]:
    """Freeze what Hydra composed; `axes` belongs to the sweep and `out` to the machine, not to the run."""
    data: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    data.pop("axes", None)
    return RunConfig.from_dict({k: v for k, v in data.items() if k != "out"}), Path(data["out"])


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(composed: DictConfig) -> None:
    """Command line: exit code 2 for a configuration that cannot run, 1 for a run that failed."""
    try:
        config, root = run_config(composed)
    except (TwoclocksError, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(run(config, root))


if __name__ == "__main__":
    main()
