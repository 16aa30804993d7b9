"""The order of prompts as a pure function of how many were drawn, so that a resume or a new plan needs no loader's state."""

from __future__ import annotations

import torch


class PromptOrder:
    """Dataset index of the number-th prompt of a run: one permutation of the dataset a pass, TRL's own, nothing dropped.

    Parameters
    ----------
    size : int
        Prompts in the dataset.
    seed : int
        Of the permutations.
    shuffle : bool
        False gives the dataset's order.
    """

    def __init__(self, size: int, seed: int, shuffle: bool) -> None:
        self.size, self.shuffle = size, shuffle
        self._passes: list[list[int]] = []
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, number: int) -> int:
        while self.shuffle and len(self._passes) <= number // self.size:
            self._passes.append(torch.randperm(self.size, generator=self._generator).tolist())
        return self._passes[number // self.size][number % self.size] if self.shuffle else number % self.size
