"""Accuracy of a policy on a list of problems, in chunks, without touching the training run's random stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from experiments.tasks import Problem


@contextmanager
def aside(model: Any, seed: int | None = None) -> Iterator[None]:
    """Evaluation mode and a forked random state: what happens inside leaves the training run as it was.

    Without a seed the fork begins where the training run stands, and sampling inside would use the very numbers that
    the next rollout will: give one wherever independence from that rollout matters.
    """
    training = model.training
    devices = [model.device] if model.device.type == "cuda" else []
    model.eval()
    with torch.random.fork_rng(devices=devices):
        if seed is not None:
            torch.manual_seed(seed)
        try:
            yield
        finally:
            model.train(training)


@torch.no_grad()
def complete(model: Any, tokenizer: Any, prompts: list[str], max_new_tokens: int, *, sample: bool, chunk: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Completions of the prompts, `chunk` rows a call, greedy or at temperature 1.

    Returns
    -------
    ids, attention : tensor (rows, tokens)
        Prompt (padded left) and completion (padded right); attention covers the completion up to and with its end token.
    width : int
        Where the completion begins.
    """
    batch = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    width = batch["input_ids"].shape[1]
    parts = []
    for start in range(0, len(prompts), chunk):
        rows = slice(start, start + chunk)
        out = model.generate(
            input_ids=batch["input_ids"][rows],
            attention_mask=batch["attention_mask"][rows],
            max_new_tokens=max_new_tokens,
            do_sample=sample,
            top_k=0 if sample else None,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        parts.append(torch.nn.functional.pad(out, (0, width + max_new_tokens - out.shape[1]), value=tokenizer.pad_token_id))
    ids = torch.cat(parts)
    end = ids[:, width:] == tokenizer.eos_token_id
    alive = end.cumsum(1) - end.long() == 0
    return ids, torch.cat([batch["attention_mask"], alive.long()], dim=1), width


def verified(tokenizer: Any, task: ModuleType, problems: list[Problem], completions: torch.Tensor) -> list[bool]:
    """Whether each completion (token ids) answers its problem."""
    answers = tokenizer.batch_decode(completions, skip_special_tokens=True)
    return [task.verify(a, p.answer) for a, p in zip(answers, problems, strict=True)]


def accuracy(
    model: Any, tokenizer: Any, task: ModuleType, problems: list[Problem], max_new_tokens: int, *, seed: int | None = None, chunk: int = 4096
) -> float:
    """Fraction of problems whose completion is verified: greedy, or with a seed sampled at temperature 1."""
    with aside(model, seed):
        ids, _, width = complete(model, tokenizer, [p.prompt for p in problems], max_new_tokens, sample=seed is not None, chunk=chunk)
    return sum(verified(tokenizer, task, problems, ids[:, width:])) / len(problems)
