"""a+b+c= with summands 0..99: a million prompts, one right answer each, at most three digits long."""

from __future__ import annotations

from functools import cache

import numpy as np

from experiments.tasks import Problem

SUMMANDS = 100
HELDOUT = 16_384  # problems set aside for evaluation and probes; training never sees them
SPLIT_SEED = 20260401  # fixes the split for good: a start checkpoint and every run share it


@cache
def _order() -> np.ndarray:
    return np.random.default_rng(SPLIT_SEED).permutation(SUMMANDS**3)


def problems(split: str, count: int, seed: int = 0) -> list[Problem]:
    """`count` distinct problems of a split, in an order fixed by the seed.

    Parameters
    ----------
    split : {"train", "heldout"}
        Disjoint by construction.
    count : int
        At most `HELDOUT` held out, or the other 983,616 for training.

    Raises
    ------
    ValueError
        If the split is unknown or has fewer problems than asked for.
    """
    pools = {"heldout": _order()[:HELDOUT], "train": _order()[HELDOUT:]}
    if split not in pools:
        raise ValueError(f"split={split!r}: choose one of {', '.join(pools)}")
    pool = pools[split]
    if count > len(pool):
        raise ValueError(f"{count} {split} problems asked for, the task has {len(pool)}")
    chosen = np.random.default_rng(seed).choice(pool, size=count, replace=False)
    summands = np.unravel_index(chosen, (SUMMANDS,) * 3)
    return [Problem(f"{a}+{b}+{c}=", str(a + b + c)) for a, b, c in zip(*summands, strict=True)]


def verify(completion: str, answer: str) -> bool:
    """Exact match: no spaces, no leading zeros, nothing after the answer."""
    return completion == answer
