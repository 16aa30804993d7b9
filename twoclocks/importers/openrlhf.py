"""OpenRLHF's keys in W&B or TensorBoard; global_step counts rollouts, and evaluations carry a step of their own."""

from __future__ import annotations

from twoclocks.importers.dialects import Dialect

DIALECT = Dialect(
    "openrlhf",
    "rollout",
    ("train/global_step", "eval/global_step"),
    {
        "train/reward": "reward",
        "train/actor_lr": "lr",
        "train/actor_grad_norm": "grad_norm",
        "train/ppo_kl": "drift_k1",
        "train/ppo_clip_ratio": "clip_frac_high",
        "train/kl": "kl_ref",
        "train/entropy_loss": "entropy",
        "train/response_length": "length",
        "_runtime": "seconds",
    },
    marks=("train/actor_lr", "train/ppo_clip_ratio", "train/actor_grad_norm"),
    evaluations=r"eval/eval_.*_pass1",
    aggregation=dict.fromkeys(("grad_norm", "drift_k1", "clip_frac_high", "entropy"), "mean over the updates of the rollout"),
)
