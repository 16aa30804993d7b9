"""One GRPO run: `python -m experiments.train +run=smoke setting.batch=128`; `+resume=<run folder>` goes on with a killed one.

Hydra composes, `RunConfig` freezes and checks, TRL trains on the schedule, the run writes its own record. Held-out greedy
accuracy is taken at fixed sample counts.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # TRL pings a server when a trainer is built

import json
import shutil
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
    """TRL's own configuration of this run: the first stage's fields, the house fields, then `config.trl` by keyword."""
    import torch
    from trl import GRPOConfig

    setting = config.schedule.stages[0].setting
    return GRPOConfig(
        output_dir=str(folder),
        max_completion_length=config.task.max_new_tokens,
        seed=config.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,  # the default replaces NaN by a running mean: a diverged run would look healthy
        report_to=[],
        save_strategy="steps" if config.save_every else "no",
        save_steps=config.save_every or 500,
        save_total_limit=2,
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        **setting.to_trl(per_device=config.micro_batch),
        **config.trl,
    )


def build(config: RunConfig, folder: Path, row: dict[str, Any]) -> tuple[Any, Any]:
    """Trainer and recorder of a run whose row is written."""
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback

    from experiments import models, tasks
    from experiments.evaluate import accuracy
    from experiments.probe import Probe
    from experiments.recorder import Recorder
    from twoclocks.trainers import DriftMeter, ScheduledGRPOTrainer

    task, setting = tasks.load(config.task.name), config.schedule.stages[0].setting
    needed = config.samples // setting.group
    train = task.problems("train", min(needed, config.task.train_problems or needed), seed=config.seed)
    aside = task.problems("heldout", config.evaluation.problems + config.probe.prompts, seed=0)
    heldout, probed = aside[: config.evaluation.problems], aside[config.evaluation.problems :]
    m = config.model
    model, tokenizer = models.load(m.path, tokenizer=m.tokenizer, dtype=m.dtype, trust_remote_code=m.trust_remote_code)
    trainer = ScheduledGRPOTrainer(
        schedule=config.schedule,
        meter=DriftMeter(probe_every=config.probe.every),
        generation_chunk=config.generation_chunk,
        model=model,
        reward_funcs=tasks.reward(task),
        args=grpo_config(config, folder),
        train_dataset=Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in train]),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)

    def evaluate(update: int) -> dict[str, float]:
        # Sampling draws its own numbers: the next rollout's would make the two depend on each other
        ways = {"heldout_acc": None, "heldout_sampled": config.seed * 1_000_003 + update}
        return {name: accuracy(model, tokenizer, task, heldout, config.task.max_new_tokens, seed=seed) for name, seed in ways.items()}

    recorder = Recorder(folder, row, config, trainer, evaluate)
    trainer.add_callback(recorder)
    if config.probe.every:
        probe = Probe(trainer, tokenizer, task, probed, every=config.probe.every, setting=setting, max_new_tokens=config.task.max_new_tokens, recorder=recorder)
        trainer.add_callback(probe)
    return trainer, recorder


def run(config: RunConfig, root: Path) -> Path:
    """Train one configuration in a new run folder and return the folder; a failure is recorded, then raised."""
    from experiments.recorder import run_row, write_run

    folder = new_folder(root, config.sweep)
    write_run(folder, run_row(config, folder.name))
    return _train(config, folder, resume=False)


def resume(folder: Path) -> Path:
    """Go on with a run from its newest complete checkpoint, or from its start if it has none."""
    from experiments.recorder import write_run
    from twoclocks.trainers import checkpoint

    row = json.loads((folder / "run.json").read_text())
    write_run(folder, row, status="running")
    return _train(RunConfig.from_dict(json.loads(row["config"])), folder, resume=bool(checkpoint.complete(folder)))


def _train(config: RunConfig, folder: Path, *, resume: bool) -> Path:
    from experiments.recorder import samples_done, write_run

    row = json.loads((folder / "run.json").read_text())
    try:
        trainer, recorder = build(config, folder, row)
        trainer.train(resume_from_checkpoint=resume)
        recorder.finish()
    except Exception:
        (folder / "error.txt").write_text(traceback.format_exc())
        row = json.loads((folder / "run.json").read_text())  # the recorder may have added to it
        write_run(folder, row, status="failed", samples_done=samples_done(folder))
        raise
    for saved in folder.glob("checkpoint-*"):  # the record is complete: these were for a killed run
        shutil.rmtree(saved)
    (folder / "probe.safetensors").unlink(missing_ok=True)
    return folder


def run_config(composed: DictConfig) -> tuple[RunConfig, Path]:
    """Freeze what Hydra composed; `axes` belongs to the sweep and `out` to the machine, not to the run."""
    data: dict[str, Any] = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    return RunConfig.from_dict({k: v for k, v in data.items() if k not in ("axes", "out", "resume")}), Path(data["out"])


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(composed: DictConfig) -> None:
    """Command line: exit code 2 for a configuration that cannot run, 1 for a run that failed."""
    try:
        config, root = run_config(composed)
    except (TwoclocksError, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(resume(Path(composed.resume)) if "resume" in composed else run(config, root))


if __name__ == "__main__":
    main()
