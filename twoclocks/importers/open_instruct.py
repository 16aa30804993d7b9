"""open-instruct's keys in W&B or a table; training_step counts rollouts, and its global_step (or episode) is completions, not steps."""

from __future__ import annotations

from twoclocks.importers.dialects import Dialect

DIALECT = Dialect(
    "open-instruct",
    "rollout",
    ("training_step",),
    {
        "episode": "samples",
        "global_step": "samples",
        "scores": "reward",
        "objective/scores": "reward",
        "lr": "lr",
        "optim/grad_norm": "grad_norm",
        "policy/clipfrac_avg": "clip_frac_high",
        "policy/entropy_avg": "entropy",
        "objective/kl_avg": "kl_ref",
        "objective/kl3_avg": "kl_ref",
        "val/sequence_lengths": "length",
        "eval/scores": "heldout_acc",
        "eval/pass_at_1": "heldout_acc",
        "_runtime": "seconds",
    },
    marks=("training_step", "loss/policy_avg", "real_batch_size_ratio"),
    store_step=False,  # W&B's step is their episode
    aggregation=dict.fromkeys(("clip_frac_high", "entropy", "kl_ref"), "mean over the mini-batches of the rollout"),
)
