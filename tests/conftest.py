"""Shared fixtures: no network beyond loopback, no files left behind, and planted worlds whose clocks are known."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import pytest

from experiments.planted import evaluation_grid, world
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
    return evaluation_grid()


@pytest.fixture
def planted() -> Callable[..., Runs]:
    """Build runs in a world where both clocks are known."""
    return world
