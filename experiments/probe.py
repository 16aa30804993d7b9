"""Optional probe of a run: whole-rollout drift on fixed completions, and the first-order gain of an update.

Every `every` updates, on held-out prompts that neither training nor evaluation uses:

- `probe/k3`: k3-KL on completions sampled once from the start policy, from the policy that sampled the rollout to the
  policy after the update. At S=1 it is the only drift there is to see.
- `probe/gain`: <delta, g>, with delta the parameter change of the update and g the gradient of expected reward on a
  fresh, independent batch sampled from the policy before the update: reward gained by the update to first order.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from experiments.evaluate import aside, complete, verified
from experiments.recorder import Recorder
from experiments.tasks import Problem
from twoclocks.setting import Setting

# ids and attention (rows, tokens), and the column where completions begin
Batch = tuple[torch.Tensor, torch.Tensor, int]


def completion_logps(model: Any, ids: torch.Tensor, attention: torch.Tensor, width: int) -> torch.Tensor:
    """Log-probabilities (rows, completion tokens) of completions that begin at `width`, nats."""
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=attention, position_ids=positions).logits[:, width - 1 : -1]
    return torch.log_softmax(logits.float(), dim=-1).gather(2, ids[:, width:, None]).squeeze(2)


def reward_gradient(model: Any, parameters: list[torch.Tensor], batch: Batch, rewards: torch.Tensor, group: int) -> tuple[torch.Tensor, ...]:
    """Unbiased estimate of the gradient of expected reward from groups of on-policy completions.

    g = mean_i G/(G-1) (r_i - mean of i's group) grad log pi(y_i); G/(G-1) makes the group baseline leave-one-out.
    """
    ids, attention, width = batch
    grouped = rewards.view(-1, group)
    advantage = (grouped - grouped.mean(1, keepdim=True)).view(-1) * group / (group - 1)
    logps = (completion_logps(model, ids, attention, width) * attention[:, width:]).sum(1)
    return torch.autograd.grad((advantage * logps).mean(), parameters)


class Probe(TrainerCallback):
    """Measures at the updates that are due; the training run's random stream and gradients stay untouched.

    Parameters
    ----------
    trainer : ScheduledGRPOTrainer
        Its meter, which measures the same updates, supplies the parameter change.
    problems : list of Problem
        Held-out prompts; the setting's group of completions is drawn for each.
    recorder : Recorder
        Its training clock stands still while the probe works.
    """

    def __init__(
        self, trainer: Any, tokenizer: Any, task: Any, problems: list[Problem], *, every: int, setting: Setting, max_new_tokens: int, recorder: Recorder
    ) -> None:
        self.trainer, self.tokenizer, self.task, self.every, self.group = trainer, tokenizer, task, every, setting.group
        self.updates_per_rollout, self.max_new_tokens, self.recorder = setting.updates_per_rollout, max_new_tokens, recorder
        self.problems = [p for p in problems for _ in range(setting.group)]
        self._fixed: Batch | None = None
        self._reference: torch.Tensor | None = None
        self._gradient: tuple[torch.Tensor, ...] | None = None

    def _due(self, update: int) -> bool:
        return update % self.every == 0

    def _sample(self, number: int) -> Batch:
        with aside(self.trainer.model, seed=hash((self.trainer.args.seed, number))):
            return complete(self.trainer.model, self.tokenizer, [p.prompt for p in self.problems], self.max_new_tokens, sample=True, chunk=4096)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from safetensors.torch import load_file, save_file

        with self.recorder.paused():
            kept = self.recorder.folder / "probe.safetensors"
            if kept.exists():  # a resumed run: the completions are the start policy's
                found = load_file(kept)
                self._fixed = found["ids"].to(self.trainer.model.device), found["attention"].to(self.trainer.model.device), int(found["width"])
            else:
                self._fixed = self._sample(-1)
                ids, attention, width = self._fixed
                save_file({"ids": ids.cpu().contiguous(), "attention": attention.cpu().contiguous(), "width": torch.tensor(width)}, kept)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self.recorder.paused():
            self._before(state)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with self.recorder.paused():
            self._after()

    def _before(self, state: Any) -> None:
        first = state.global_step - state.global_step % self.updates_per_rollout
        rollout = range(first, first + self.updates_per_rollout)
        if state.global_step == first and any(self._due(u) for u in rollout):
            with torch.no_grad():
                self._reference = completion_logps(self.trainer.model, *self._fixed)
        if self._due(state.global_step):
            batch = self._sample(state.global_step)
            correct = verified(self.tokenizer, self.task, self.problems, batch[0][:, batch[2] :])
            rewards = torch.tensor(correct, dtype=torch.float32, device=batch[0].device)
            parameters = self.trainer.meter.parameters()
            self._gradient = reward_gradient(self.trainer.model, parameters, batch, rewards, self.group)

    @torch.no_grad()
    def _after(self) -> None:
        if self._gradient is None:
            return
        ids, attention, width = self._fixed
        metrics = self.trainer._metrics["train"]
        if self._reference is not None:  # a run resumed inside a rollout no longer has the policy that sampled it
            log_ratio = completion_logps(self.trainer.model, ids, attention, width) - self._reference
            mask = attention[:, width:]
            metrics["probe/k3"].append((((torch.expm1(log_ratio) - log_ratio) * mask).sum() / mask.sum()).item())
        gain = sum((d * g).sum() for d, g in zip(self.trainer.meter.delta, self._gradient, strict=True))
        metrics["probe/gain"].append(float(gain))
        self._gradient = None
