"""Shared fixtures: no network beyond loopback, no files left behind, and planted worlds whose clocks are known."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pandas as pd
import pytest

from tests.planted import curve_rows, run_row
from twoclocks import progress
from twoclocks.records import Runs


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with connections to anything but loopback refused."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family in (socket.AF_INET, socket.AF_INET6) and host not in ("127.0.0.1", "::1", "localhost"):
            raise PermissionError(f"tests may not reach {host}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture
def evaluations() -> np.ndarray:
    """Sample counts of a log grid of evaluations, from 0."""
    return np.unique(np.concatenate([[0], np.geomspace(500, 100_000, 60)]).round())


@pytest.fixture
def planted(evaluations: np.ndarray) -> Callable[..., Runs]:
    """Build runs in a world where both clocks are known.

    a, h0, h1 and collapse(B, c, clipped) give each run its samples to a gain of 0.1 and its samples to collapse;
    sd(B) is the log-normal spread of both between seeds.
    """

    def build(
        *, a: float = 20.0, h0: float = 0.0, h1: float = 0.0, collapse: Callable[[float, float, bool], float] = lambda b, c, k: np.inf,
        sd: Callable[[float], float] = lambda b: 0.1, batches: tuple[int, ...] = (32, 128, 512, 2048), lr32: tuple[float, ...] = (2e-6, 5e-6),
        clips: tuple[bool, ...] = (True,), seeds: int = 3, noise: float = 0.003, rng: int = 0, sweep: str = "planted", testbed: str = "planted",
        early: Callable[[bool], float] = lambda clipped: 1.0,
    ) -> Runs:  # fmt: skip
        generator, rows, curves = np.random.default_rng(rng), [], []
        for batch in batches:
            for lr in lr32:
                for clipped in clips:
                    for seed in range(seeds):
                        c = lr / 32**0.5
                        rate = float(progress.per_sample(batch, c, a=a, h0=h0, h1=h1))
                        e = early(clipped) * 0.1 / rate * np.exp(sd(batch) * generator.standard_normal()) if rate > 0 else np.inf
                        end = collapse(batch, c, clipped) * np.exp(sd(batch) * generator.standard_normal())
                        rise = 0.2 + 0.1 * np.minimum(evaluations / e, 2.5)
                        y = np.where(evaluations < end, rise, np.maximum(0.0, rise - 0.25)) + noise * generator.standard_normal(len(evaluations))
                        name = f"{sweep}-{batch}-{lr:g}-{clipped:d}-{seed}"
                        clip = 0.2 if clipped else None
                        told = {"run_id": name, "sweep": sweep, "testbed": testbed, "batch": batch, "lr": c * batch**0.5, "drift_rate": c, "seed": seed}
                        rows.append(run_row(**told, clip_low=clip, clip_high=clip))
                        curves.append(curve_rows(name, batch, evaluations, y))
        return Runs(pd.DataFrame(rows), pd.concat(curves, ignore_index=True))

    return build
