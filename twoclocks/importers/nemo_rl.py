"""NeMo-RL's keys in W&B, TensorBoard or MLflow; a step is a rollout, and what is not in its list of means is summed over updates."""

from __future__ import annotations

from twoclocks.importers.dialects import Dialect

DIALECT = Dialect(
    "nemo-rl",
    "rollout",
    (),
    {
        "train/reward": "reward",
        "train/lr": "lr",
        "train/grad_norm": "grad_norm",
        "train/kl_penalty": "kl_ref",
        "train/approx_entropy": "entropy",
        "train/gen_kl_error": "engine_mismatch",
        "validation/accuracy": "heldout_acc",
        "_runtime": "seconds",
    },
    marks=("train/probs_ratio", "train/token_mult_prob_error", "train/gen_kl_error", "train/approx_entropy"),
    aggregation={"grad_norm": "sum over the updates of the rollout", "kl_ref": "sum over the updates of the rollout", "reward": "mean of the rollout"},
)
