"""Supervised warm start of `mini`: `python -m experiments.warmstart` -> experiments/models/mini/ (fp16 safetensors, tokenizer).

Trains on the task's training split with next-token loss on the answer until sampled accuracy on held-out problems is in
the window, then stops: a policy that is right one time in six has mixed groups on most prompts, which is what GRPO needs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import typer

from experiments import models, tasks
from experiments.evaluate import accuracy


def answer_loss(model: Any, tokenizer: Any, problems: list[tasks.Problem]) -> torch.Tensor:
    """Mean next-token loss over the answers and their end tokens."""
    prompts = tokenizer([p.prompt for p in problems], return_tensors="pt", padding=True, add_special_tokens=False)
    answers = tokenizer([p.answer + tokenizer.eos_token for p in problems], return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False)
    ids = torch.cat([prompts["input_ids"], answers["input_ids"]], dim=1).to(model.device)
    attention = torch.cat([prompts["attention_mask"], answers["attention_mask"]], dim=1).to(model.device)
    labels = ids.clone()
    labels[:, : prompts["input_ids"].shape[1]] = -100
    labels[attention == 0] = -100
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    return model(input_ids=ids, attention_mask=attention, position_ids=positions, labels=labels).loss


def main(
    task: str = "arithmetic",
    out: Path = models.MINI,
    low: float = 0.155,
    high: float = 0.20,
    batch: int = 1024,
    lr: float = 5e-4,
    max_steps: int = 20_000,
    max_new_tokens: int = 5,
    seed: int = 0,
) -> None:
    """Train until sampled held-out accuracy lies in [low, high]; refuse to overwrite an existing checkpoint."""
    if (out / "model.safetensors").exists():
        raise typer.BadParameter(f"{out} holds a start checkpoint already; runs depend on it: choose another --out")
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer, job = models.mini_tokenizer(), tasks.load(task)
    model = models.mini_model(len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    train, heldout = job.problems("train", 900_000, seed=seed), job.problems("heldout", 4096, seed=1)
    for step in range(max_steps):
        rows = [train[i % len(train)] for i in range(step * batch, (step + 1) * batch)]
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / 200)
        loss = answer_loss(model, tokenizer, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            sampled = accuracy(model, tokenizer, job, heldout, max_new_tokens, seed=step)
            typer.echo(f"step {step:5d}  loss {loss.item():.4f}  sampled accuracy {sampled:.4f}")
            if sampled > high:
                raise typer.Exit(f"accuracy passed {high} between checks; lower --lr")  # type: ignore[arg-type]
            if sampled >= low:
                break
    greedy = accuracy(model, tokenizer, job, heldout, max_new_tokens)
    model.half().save_pretrained(out)
    tokenizer.save_pretrained(out)
    facts = {"task": task, "seed": seed, "steps": step + 1, "batch": batch, "lr": lr, "sampled_acc": sampled, "greedy_acc": greedy}
    facts |= {"parameters": sum(p.numel() for p in model.parameters()), "sha256": models.weights_sha256(str(out))}
    (out / "warmstart.json").write_text(json.dumps(facts, indent=1) + "\n")
    typer.echo(json.dumps(facts))


if __name__ == "__main__":
    typer.run(main)
