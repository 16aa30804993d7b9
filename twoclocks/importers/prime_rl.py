"""prime-rl's keys in W&B or a table; a step is an optimizer update, and total_rollouts counts completions."""

from __future__ import annotations

from twoclocks.importers.dialects import Dialect

DIALECT = Dialect(
    "prime-rl",
    "update",
    ("step",),
    {
        "progress/total_rollouts": "samples",
        "reward/all/mean": "reward",
        "reward/mean": "reward",
        "optim/lr": "lr",
        "optim/grad_norm": "grad_norm",
        "entropy/all/mean": "entropy",
        "entropy/mean": "entropy",
        "mismatch_kl/all/mean": "drift_k3",
        "mismatch_kl/mean": "drift_k3",
        "_runtime": "seconds",
    },
    marks=("optim/lr", "mismatch_kl/all/mean", "mismatch_kl/mean", "progress/total_rollouts"),
    evaluations=r"eval/.*/avg@\d+",
    aggregation=dict.fromkeys(("entropy", "drift_k3"), "mean over the batch's tokens"),
)
