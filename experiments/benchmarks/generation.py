"""`python -m experiments.benchmarks.generation MODEL_FOLDER --out FOLDER`: vLLM colocate against HF generate, through a switch.

ScheduledGRPOTrainer on three-digit sums, batch 128 then 256 (S = 2, 256 then 512 completions a rollout), one model and one engine
over the switch. Arms run one after the other in one process: HF generate with two seeds, vLLM with the same two. Seconds are
those of `_generate_single_turn`, weight synchronisation included.

Pass rule: completions per second of vLLM at least 3 times HF's over rollouts after the first of each batch; mean reward per
rollout within the difference of the two HF seeds (twice its standard error over rollouts), likewise drift.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pandas as pd

ROLLOUTS = 5
ASK = {64: "End with the number", 256: "Explain every digit and carry in words, step by step, then end with the number"}  # longest completion -> question


def problems(count: int, tokens: int) -> list[dict[str, Any]]:
    """Three-digit sums as chats."""
    draw = random.Random(0)
    pairs = [(draw.randint(100, 999), draw.randint(100, 999)) for _ in range(count)]
    return [{"prompt": [{"role": "user", "content": f"What is {a}+{b}? {ASK[tokens]} in \\boxed{{}}."}], "answer": a + b} for a, b in pairs]


def last_number(completions: list[Any], answer: list[int], **kwargs: Any) -> list[float]:
    """1 where the last number of the completion is the answer."""
    found = [re.findall(r"\d+", c[0]["content"].replace(",", "")) for c in completions]
    return [float(bool(numbers) and int(numbers[-1]) == right) for numbers, right in zip(found, answer, strict=True)]


def run(model: str, backend: str, seed: int, tokens: int) -> pd.DataFrame:
    """One run; a row a rollout."""
    import torch
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback

    from experiments import models
    from twoclocks.schedule import Schedule, Stage
    from twoclocks.setting import Setting
    from twoclocks.trainers import ScheduledGRPOTrainer, grpo_config

    first = Setting(batch=128, lr=1e-6, group=8, updates_per_rollout=2)
    second = first.scaled(256)
    schedule = Schedule((Stage(first, ROLLOUTS * first.rollout), Stage(second, ROLLOUTS * second.rollout)), lr_warmup_samples=512)
    vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "vllm_max_model_length": tokens + 128} if backend == "vllm" else {}
    args = grpo_config(
        schedule, "out", per_device_train_batch_size=64, max_completion_length=tokens, seed=seed, report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True, logging_nan_inf_filter=False, **vllm,
    )  # fmt: skip
    trainer = ScheduledGRPOTrainer(
        schedule=schedule, model=model, args=args, reward_funcs=last_number, train_dataset=Dataset.from_list(problems(4096, tokens)),
        processing_class=models.load_tokenizer(model),
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    rows: list[dict[str, Any]] = []
    generate = trainer._generate_single_turn

    def timed(prompt_ids: Any, *rest: Any, **kwargs: Any) -> Any:
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = generate(prompt_ids, *rest, **kwargs)
        torch.cuda.synchronize()
        rows.append({"completions": len(prompt_ids), "tokens": sum(len(ids) for ids in found[0]), "generate_s": time.perf_counter() - start})
        return found

    trainer._generate_single_turn = timed
    trainer.train()
    logs = [row for row in trainer.state.log_history if "train_runtime" not in row]
    for row, rollout in zip(rows, trainer.timetable.rollouts, strict=True):
        began, ended = logs[rollout.update], logs[rollout.update + 1]
        row |= {"rollout": rollout.index, "batch": rollout.setting.batch, "lr": ended["learning_rate"], "reward": began["reward"]}
        row |= {name: ended.get(f"twoclocks/{name}") for name in ("drift_k3", "drift_abs", "engine_mismatch")}
        row |= {"first_of_batch": rollout.samples in (0, schedule.stages[0].samples)}
    dtypes = {str(p.dtype) for p in trainer.model.parameters()}
    table = pd.DataFrame(rows).assign(backend=backend, seed=seed, max_tokens=tokens, dtypes=",".join(sorted(dtypes)))
    del trainer
    gc.collect()
    torch.cuda.empty_cache()
    return table


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Throughput, reward and drift per backend and batch."""
    warm = table[~table["first_of_batch"]]
    groups = warm.groupby(["backend", "batch"])
    found = groups[["completions", "tokens", "generate_s"]].sum()
    found["completions_per_s"], found["tokens_per_s"] = found["completions"] / found["generate_s"], found["tokens"] / found["generate_s"]
    return found.join(table.groupby(["backend", "batch"])[["reward", "drift_k3", "drift_abs", "engine_mismatch"]].mean())


def main() -> None:
    """Measure, write `generation.parquet`, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arms", nargs="*", default=["hf:0", "hf:1", "vllm:0", "vllm:1"])
    parser.add_argument("--tokens", type=int, choices=sorted(ASK), default=64)
    arguments = parser.parse_args()
    from experiments import models
    from experiments.recorder import device_name, git_sha, versions

    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = {
        "device": device_name(),
        "git_sha": git_sha(),
        "versions": json.dumps(versions(), sort_keys=True),
        "sha256": models.weights_sha256(arguments.model),
    }
    tables: list[pd.DataFrame] = []
    for arm in arguments.arms:
        backend, seed = arm.split(":")
        tables.append(run(arguments.model, backend, int(seed), arguments.tokens).assign(**facts))
        together = pd.concat(tables, ignore_index=True)
        together.to_parquet(arguments.out / "generation.parquet", index=False, compression="zstd")
        print(summary(together).round(4).to_string(), flush=True)


if __name__ == "__main__":
    main()
