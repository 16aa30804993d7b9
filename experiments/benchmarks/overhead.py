"""`python -m experiments.benchmarks.overhead --out FOLDER`: step time of ScheduledGRPOTrainer with its meter over TRL's GRPOTrainer.

All arms train the same model at the same batch in one process and take turns, a rollout each, so that whatever the machine
does hits them alike; pairs are turns of one round. Completions have a fixed length and nothing is generated in other chunks
than the stock trainer's. Two times a rollout: all of it, and its updates after the first, which hold no generation. The
stock trainer computes old log-probabilities at S >= 2 itself; at S = 1 it does not, ours does, and the ratio says what that costs.

Pass rule: upper end of the 95% t interval of the mean log ratio at most 1.02 for at least 100M parameters at B >= 256 with
S >= 2, at most 1.05 for mini, from at least 20 pairs, for both times.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

WARM, PAIRS = 3, 24


@dataclass(frozen=True)
class Case:
    """A model and a setting to measure."""

    name: str
    batch: int
    micro: int
    updates: int
    tokens: int
    bf16: bool


CASES = (
    Case("mini", 256, 256, 4, 6, False),
    Case("qwen2-103m", 256, 64, 4, 32, True),
    Case("mini", 256, 256, 1, 6, False),
    Case("qwen2-103m", 256, 64, 1, 32, True),
)


def model(name: str) -> tuple[Any, Any]:
    """(model, tokenizer): the committed mini, or a random Qwen2 of 103M parameters with mini's tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from experiments import models

    mini, tokenizer = models.load(str(models.MINI))
    if name == "mini":
        return mini, tokenizer
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32_768, hidden_size=768, intermediate_size=3072, num_hidden_layers=9, num_attention_heads=12, num_key_value_heads=4,
        tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return Qwen2ForCausalLM(config), tokenizer


class Turns:
    """Lets one trainer run at a time, a rollout a turn, in a fixed order."""

    def __init__(self, arms: list[str]) -> None:
        self.arms, self.turn, self.failed = arms, 0, False
        self.changed = threading.Condition()

    def wait(self, arm: str) -> None:
        """Block until it is this arm's turn."""
        with self.changed:
            self.changed.wait_for(lambda: self.failed or self.arms[self.turn % len(self.arms)] == arm)

    def done(self) -> None:
        """Pass the turn on."""
        with self.changed:
            self.turn += 1
            self.changed.notify_all()

    def fail(self) -> None:
        """Let every arm go: one has failed."""
        with self.changed:
            self.failed = True
            self.changed.notify_all()


def clock(arm: str, updates: int, turns: Turns, rows: list[dict[str, Any]]) -> Any:
    """Callback that takes turns at rollout borders and times what lies between."""
    import torch
    from transformers import TrainerCallback

    def now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()

    class Clock(TrainerCallback):
        begun = after_first = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % updates == 0:
                turns.wait(arm)
                self.begun = now()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            inner = (state.global_step - 1) % updates
            if inner == 0:
                self.after_first = now()
            if inner == updates - 1:
                end = now()
                later = (end - self.after_first) / (updates - 1) if updates > 1 else None
                rows.append({"arm": arm, "round": state.global_step // updates - 1, "rollout_s": end - self.begun, "later_update_s": later})
                turns.done()

    return Clock()


def measure(case: Case) -> pd.DataFrame:
    """Seconds of every turn of every arm."""
    import torch
    from datasets import Dataset
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from twoclocks import schedule
    from twoclocks.setting import Setting
    from twoclocks.trainers import DriftMeter, ScheduledGRPOTrainer

    setting = Setting(batch=case.batch, lr=1e-7, group=8, updates_per_rollout=case.updates)
    rollouts = WARM + PAIRS
    data = Dataset.from_list([{"prompt": f"{i}+{i % 97}="} for i in range(4096)])
    house = dict(
        max_completion_length=case.tokens, generation_kwargs={"min_new_tokens": case.tokens}, report_to=[], save_strategy="no", bf16=case.bf16,
        logging_steps=1, disable_tqdm=True, logging_nan_inf_filter=False, use_cpu=not torch.cuda.is_available(),
    )  # fmt: skip
    fields = setting.to_trl(per_device=case.micro)
    made: dict[str, Callable[..., Any]] = {
        "stock": lambda **k: GRPOTrainer(args=GRPOConfig("out", **house, **fields, lr_scheduler_type="constant", max_steps=rollouts * case.updates), **k),
        "scheduled": lambda **k: ScheduledGRPOTrainer(
            args=GRPOConfig("out", **house, **fields), schedule=schedule.constant(setting, rollouts * setting.rollout), meter=DriftMeter(), **k
        ),
        "scheduled, probe every 16": lambda **k: ScheduledGRPOTrainer(
            args=GRPOConfig("out", **house, **fields), schedule=schedule.constant(setting, rollouts * setting.rollout), meter=DriftMeter(probe_every=16), **k
        ),
    }
    turns, rows, trainers = Turns(list(made)), [], {}
    for arm, make in made.items():
        policy, tokenizer = model(case.name)
        trainers[arm] = make(
            model=policy, processing_class=tokenizer, train_dataset=data, reward_funcs=lambda completions, **_: [float(len(c) % 3) for c in completions]
        )
        trainers[arm].remove_callback(PrinterCallback)
        trainers[arm].add_callback(clock(arm, case.updates, turns, rows))
    errors: list[BaseException] = []

    def train(arm: str) -> None:
        try:
            turns.wait(arm)  # one at a time through the start as well
            if arm != turns.arms[-1]:
                trainers[arm].args.disable_tqdm = True
            trainers[arm].train()
        except BaseException as error:
            errors.append(error)
            turns.fail()

    threads = [threading.Thread(target=train, args=(arm,)) for arm in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    parameters = sum(p.numel() for p in trainers["stock"].model.parameters())
    table = pd.DataFrame(rows)
    return table[table["round"] >= WARM].assign(model=case.name, parameters=parameters, batch=case.batch, updates_per_rollout=case.updates)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Geometric mean ratio to the stock trainer with its 95% t interval, per model, S, arm and time."""
    from scipy import stats

    found = []
    for (name, updates), rows in table.groupby(["model", "updates_per_rollout"]):
        for column in ("rollout_s", "later_update_s"):
            wide = rows.pivot_table(index="round", columns="arm", values=column).dropna()
            for arm in wide.columns.drop("stock", errors="ignore"):
                log = np.log(wide[arm] / wide["stock"])
                half = stats.t.ppf(0.975, len(log) - 1) * log.std(ddof=1) / np.sqrt(len(log))
                found.append((name, updates, arm, column, len(log), *np.exp([log.mean(), log.mean() - half, log.mean() + half]), wide["stock"].median()))
    return pd.DataFrame(found, columns=["model", "S", "arm", "time", "pairs", "ratio", "low", "high", "stock_s"])


def main() -> None:
    """Measure, write `overhead.parquet`, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)))
    arguments = parser.parse_args()
    from experiments.recorder import device_name, git_sha, versions

    tables = []
    for number in arguments.cases:
        tables.append(measure(CASES[number]))
        print(ratios(tables[-1]).round(4).to_string(index=False), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = pd.concat(tables, ignore_index=True).assign(device=device_name(), git_sha=git_sha(), versions=json.dumps(versions(), sort_keys=True))
    table.to_parquet(arguments.out / "overhead.parquet", index=False, compression="zstd")


if __name__ == "__main__":
    main()
