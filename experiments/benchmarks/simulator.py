"""`python -m experiments.benchmarks.simulator`: the vectorised quadratic simulator against the obvious Python loop.

For sign, normalised and Adam updates both run the same 1,024 trajectories (16 settings x 64 seeds) of the same world over
the same samples, in turn and several times in one process; they must agree in mean loss before the ratio of their best
times is printed. The loop runs every trajectory in full; nothing is extrapolated. The gain falls with the number of
coordinates, as both then wait for random numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time

import numpy as np

from twoclocks.trajectory import Quadratic, Update, simulate

SEEDS, SAMPLES, REPEATS, DIMENSIONS = 64, 4096, 3, 4
BATCHES, DRIFT_RATES = (16, 32, 64, 128), (1e-3, 2e-3, 4e-3, 8e-3)
UPDATES: tuple[Update, ...] = ("sign", "normalised", "adam")


def world(d: int) -> Quadratic:
    """One stiff direction and a spread of softer ones."""
    return Quadratic(np.diag(np.geomspace(0.01, 1.0, d)), np.ones(d), np.full(d, 0.5))


def loop(quadratic: Quadratic, batch: int, c: float, samples: int, update: Update, rng: np.random.Generator) -> np.ndarray:
    """One trajectory, an update at a time."""
    theta, lr = quadratic.start.copy(), c * math.sqrt(batch)
    root = quadratic.noise / math.sqrt(batch)
    first, second = np.zeros_like(theta), np.zeros_like(theta)
    for k in range(samples // batch):
        gradient = -quadratic.hessian @ theta + root * rng.standard_normal(len(theta))
        if update == "sign":
            theta += lr * np.sign(gradient)
        elif update == "normalised":
            theta += lr * gradient / root
        else:
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            theta += lr * (first / (1 - 0.9 ** (k + 1))) / np.sqrt(second / (1 - 0.999 ** (k + 1)))
    return theta


def measure(update: Update, seeds: int, samples: int, repeats: int, d: int) -> dict[str, float]:
    """Best seconds of both over the repeats, and their ratio.

    Raises
    ------
    RuntimeError
        If the two disagree in mean loss by more than 4.5 standard errors at any setting.
    """
    quadratic, rng = world(d), np.random.default_rng(0)
    batch, c = (g.ravel() for g in np.meshgrid(BATCHES, DRIFT_RATES))
    seconds: list[tuple[float, float]] = []
    for _ in range(repeats):
        start = time.perf_counter()
        fast = simulate(quadratic, batch, c, at=[samples], seeds=seeds, rng=rng, update=update).theta[:, 0]
        middle = time.perf_counter()
        slow = np.array([[loop(quadratic, int(b), float(rate), samples, update, rng) for _ in range(seeds)] for b, rate in zip(batch, c, strict=True)])
        seconds.append((middle - start, time.perf_counter() - middle))
        losses = [quadratic.loss(theta) for theta in (fast, slow)]
        error = np.sqrt(sum(loss.var(axis=1, ddof=1) / seeds for loss in losses))
        if np.any(np.abs(losses[0].mean(axis=1) - losses[1].mean(axis=1)) > 4.5 * error):
            raise RuntimeError(f"the simulator and the loop disagree ({update}); the ratio of their times means nothing")
    simulator, python = (min(column) for column in zip(*seconds, strict=True))
    return {"trajectories": len(batch) * seeds, "simulator_s": simulator, "loop_s": python, "ratio": python / simulator}


def main() -> None:
    """One JSON line an update rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--dimensions", type=int, default=DIMENSIONS)
    arguments = parser.parse_args()
    for update in UPDATES:
        found = measure(update, arguments.seeds, arguments.samples, arguments.repeats, arguments.dimensions)
        print(json.dumps({"update": update, "dimensions": arguments.dimensions, "cores": os.cpu_count()} | {k: round(v, 3) for k, v in found.items()}))


if __name__ == "__main__":
    main()
