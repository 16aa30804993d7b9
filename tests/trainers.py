"""A tiny policy and trainers on it, for the tests of twoclocks.trainers; also a script that the kill and DDP tests start."""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from datasets import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig

from experiments import models
from twoclocks.schedule import Schedule, Stage
from twoclocks.setting import Setting
from twoclocks.trainers import DriftMeter, ScheduledGRPOTrainer

PROMPTS = [{"prompt": f"{i}+{i + 1}="} for i in range(400)]


def tokenizer():
    return models.load_tokenizer(str(models.MINI))


def policy(seed=0, dtype=torch.float32):
    """A random Qwen2 of 27,000 parameters."""
    tok = tokenizer()
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to(dtype)


def odd_digits(completions, **kwargs):
    """Share of odd digits: learnable, and never the same for a whole group."""
    return [sum(ch in "13579" for ch in text) / max(1, len(text)) for text in completions]


def config(folder, **fields):
    house = dict(
        max_completion_length=5, report_to=[], save_strategy="no", use_cpu=True, bf16=False, logging_steps=1, disable_tqdm=True,
        logging_nan_inf_filter=False,
    )  # fmt: skip
    return GRPOConfig(str(folder), **house | fields)


def trainer(cls, folder, *, model=None, prompts=PROMPTS, callbacks=None, fields=None, **kwargs):
    made = cls(
        model=policy() if model is None else model, reward_funcs=odd_digits, args=config(folder, **fields or {}),
        train_dataset=Dataset.from_list(prompts), processing_class=tokenizer(), callbacks=callbacks, **kwargs,
    )  # fmt: skip
    made.remove_callback(PrinterCallback)
    return made


def setting(batch, lr=1e-3, updates=2, group=4, clip=(0.2, 0.2)):
    return Setting(batch=batch, lr=lr, group=group, updates_per_rollout=updates, clip=clip)


def misaligned():
    """1 -> 2 -> 8 -> 3 micro-batches of 4 with S = 4, 2, 1, 2, on borders that fit no common window."""
    stages = [(setting(4, 1e-3, 4), 48), (setting(8, 2e-3, 2), 48), (setting(32, 4e-3, 1), 64), (setting(12, 1.5e-3, 2), 72)]
    return Schedule(tuple(Stage(s, n) for s, n in stages))


class Rows(TrainerCallback):
    """Appends every log row to a file, as a run's record."""

    def __init__(self, path):
        self.path = Path(path)

    def on_log(self, args, state, control, logs, **kwargs):
        if "train_runtime" not in logs and state.is_world_process_zero:
            with self.path.open("a") as file:
                file.write(json.dumps({"update": state.global_step, **logs}) + "\n")
                file.flush()


def weights(trainer):
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def scheduled(folder, schedule, fields=None, **kwargs):
    """A ScheduledGRPOTrainer with micro-batches and groups of 4."""
    return trainer(ScheduledGRPOTrainer, folder, schedule=schedule, fields={"per_device_train_batch_size": 4, "num_generations": 4} | (fields or {}), **kwargs)


def logged(trainer, key):
    """Values of a key over the log rows that have it."""
    return [row[key] for row in trainer.state.log_history if key in row and "train_runtime" not in row]


def main(folder, resume, save_steps):
    """Follow the misaligned schedule, saving checkpoints; leave the final weights in `final.pt`."""
    torch.set_num_threads(1)
    made = trainer(
        ScheduledGRPOTrainer, Path(folder) / "run", schedule=misaligned(), meter=DriftMeter(probe_every=3), callbacks=[Rows(Path(folder) / "rows.jsonl")],
        fields={
            "per_device_train_batch_size": 4 // int(os.environ.get("WORLD_SIZE", "1")), "num_generations": 4, "save_strategy": "steps",
            "save_steps": int(save_steps),
        },
    )  # fmt: skip
    made.train(resume_from_checkpoint=resume == "resume")
    weights = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    torch.save(weights, Path(folder) / f"final-{made.args.process_index}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
