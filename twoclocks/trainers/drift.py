"""TRL's GRPOTrainer with a drift meter: how far each update's policy is from the policy that sampled its rollout.

TRL logs clip fractions but neither the distance to the rollout policy nor the size of a step. Both come almost free:
the loss already holds the log-probabilities of the policy and of the rollout policy.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer


def log_ratio_drift(log_ratio: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Mean |log r| and mean k3 = r - 1 - log r over the tokens of the mask.

    With r = pi/pi_rollout and tokens sampled from pi_rollout, k3 is an unbiased, non-negative estimate of
    KL(pi_rollout || pi) per token.

    Parameters
    ----------
    log_ratio : tensor (rows, tokens)
        log pi - log pi_rollout, nats.
    mask : tensor (rows, tokens)
        1 on completion tokens.
    """
    tokens = mask.sum().clamp(min=1)
    k3 = torch.expm1(log_ratio) - log_ratio
    mean = torch.stack([(log_ratio.abs() * mask).sum(), (k3 * mask).sum()]) / tokens
    return dict(zip(("drift/abs_log_ratio", "drift/k3"), mean.tolist(), strict=True))


class MeteredGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that also logs `drift/abs_log_ratio`, `drift/k3` and `drift/update_norm` for every update.

    The reference is TRL's `old_per_token_logps`, recomputed by the trainer when the rollout is scored. TRL skips it
    where a whole rollout feeds one update; the ratio is 1 there by construction and nothing is logged
    (twoclocks measures drift at S=1 on fixed completions instead, after the update).
    Drift metrics are read before the update's own step, so the first update of each rollout shows none.
    The forward pass of the loss is reused: training is bit-identical to GRPOTrainer.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._logps: torch.Tensor
        self.update_meter = UpdateMeter(self)
        self.add_callback(self.update_meter)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._logps = scored[0]
        return scored

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        old = inputs.get("old_per_token_logps")
        if old is not None and self.model.training:
            mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)  # tool output is not the policy's
            for name, value in log_ratio_drift(self._logps.detach() - old, mask).items():
                self._metrics["train"][name].append(value)
        return loss


class UpdateMeter(TrainerCallback):
    """Takes the parameters before an optimizer step and logs the l2 norm of what the step changed.

    Attributes
    ----------
    delta : list of tensors
        Change of each trainable parameter in the last update; valid until the next step begins.
    """

    def __init__(self, trainer: MeteredGRPOTrainer) -> None:
        self.trainer = trainer
        self.delta: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []

    def parameters(self) -> list[torch.Tensor]:
        """Trainable parameters, in a fixed order."""
        return [p for p in self.trainer.model.parameters() if p.requires_grad]

    @torch.no_grad()
    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._before = [p.detach().clone() for p in self.parameters()]

    @torch.no_grad()
    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.delta = torch._foreach_sub([p.detach() for p in self.parameters()], self._before)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(self.delta)))
        self.trainer._metrics["train"]["drift/update_norm"].append(norm.item())
