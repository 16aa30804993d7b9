"""Pictures of the theory: the shipped closed forms as lines, the shipped simulator as dots; no record is read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.figures import STYLE, colour, save
from twoclocks import clipping, failure, program, progress, trajectory

K = trajectory.MEAN_STEP["sign"]


def local_world() -> tuple[trajectory.Quadratic, progress.ProgressClock]:
    """60 coordinates whose curvature is concentrated along the signal, and the coefficients of its local model."""
    rng, d = np.random.default_rng(0), 60
    mu = np.abs(rng.standard_normal(d)) * 0.01 + 0.005
    sigma = np.exp(0.3 * rng.standard_normal(d))
    s = mu / sigma
    u = s / np.linalg.norm(s)
    hessian = 0.02 * np.eye(d) + 8 * np.outer(u, u)
    off = hessian - np.diag(np.diag(hessian))
    world = trajectory.Quadratic(hessian, sigma, -np.linalg.solve(hessian, mu))  # where the gradient is mu
    return world, progress.ProgressClock(a=K * (mu**2 / sigma).sum(), h0=float(np.trace(hessian)), h1=float(K**2 * s @ off @ s))


def one_step() -> tuple[Any, pd.DataFrame]:
    """Progress per sample against batch for several drift rates, with B_crit marked; dots are simulated sign updates."""
    world, clock = local_world()
    peak = clock.best_drift_rate(clock.h0 / clock.h1)
    batches, drawn = np.geomspace(4, 2048, 120), 2.0 ** np.arange(3, 11)
    rng, rows = np.random.default_rng(1), []
    figure, ax = plt.subplots(figsize=(7, 4.5))
    scale = float(clock.per_sample(1, peak))
    for number, relative in enumerate((0.25, 0.5, 1.0, 1.5)):
        c = relative * peak
        line = clock.per_sample(batches, c) / scale
        critical = clock.critical_batch(c, 0.5)
        ax.plot(batches, line, color=f"C{number}", label=rf"$c$ = {relative:g} $c^*$")
        ax.plot([critical], [clock.per_sample(critical, c) / scale], "v", color=f"C{number}", markersize=9)
        rows += [("model", relative, b, p) for b, p in zip(batches, line, strict=True)] + [
            ("critical", relative, critical, float(clock.per_sample(critical, c)) / scale)
        ]
        for b in drawn:
            ran = trajectory.simulate(world, b, c, at=[b], seeds=20_000, rng=rng, update="sign")
            gain = (world.loss(world.start) - world.loss(ran.theta[0, 0])).mean() / b / scale
            ax.plot([b], [gain], "o", color=f"C{number}", markersize=4)
            rows.append(("simulated", relative, b, gain))
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set(xscale="log", ylim=(-0.4, 1.15), xlabel="batch B", ylabel="progress per sample (relative)")
    ax.set_title(r"one update: $p(B, c)$; triangles: $B_{\mathrm{crit}}(1/2;\,c)$; dots: simulated", fontsize=10)
    ax.legend(loc="lower left")
    return figure, pd.DataFrame(rows, columns=["series", "relative_c", "batch", "progress"])


def whole_run() -> tuple[Any, pd.DataFrame]:
    """Samples to shrink the mean fivefold against x = c B K lambda: exact, one-step prediction, simulated."""
    c, d, seeds = 1e-3, 64, 1000
    u = np.ones(d) / math.sqrt(d)
    rng, rows = np.random.default_rng(2), []
    figure, ax = plt.subplots(figsize=(7, 4.5))
    x = np.concatenate([np.linspace(0.02, 0.98, 60), np.linspace(1.02, 1.8, 50)])
    exact, local = trajectory.relative_samples(x), 1 / (1 - x / 2)
    ax.plot(x, exact, color="C0", label=r"whole run, $-x/\ln|1-x|$")
    ax.plot(x, local, "--", color="C3", label=r"one step against a frozen gradient, $1/(1-x/2)$")
    rows += [("exact", *pair) for pair in zip(x, exact, strict=True)] + [("local", *pair) for pair in zip(x, local, strict=True)]
    for marker, update in (("o", "normalised"), ("s", "sign")):
        gain = trajectory.MEAN_STEP[update]
        world = trajectory.Quadratic(np.outer(u, u), np.ones(d), math.sqrt(50 * c / (2 * gain)) * u)  # 50 times the noise floor
        for at in (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.2, 1.4, 1.6, 1.7):
            b = at / (c * gain)
            ran = trajectory.simulate(world, b, c, at=b * np.arange(int(4 / at) + 25), seeds=seeds, rng=rng, update=update)
            mean = np.abs((ran.theta[0] @ u).mean(axis=1)) / (world.start @ u)
            needed = np.interp(-0.2, -np.minimum.accumulate(mean), ran.samples[0]) * c * gain / -math.log(0.2)
            ax.plot([at], [needed], marker, color="C0" if update == "normalised" else "C2", markersize=5, fillstyle="none")
            rows.append((update, at, needed))
    for marker, tint, update in (("o", "C0", "normalised"), ("s", "C2", "sign")):
        ax.plot([], [], marker, color=tint, fillstyle="none", label=f"simulated, {update} updates")
    ax.axhline(1, color="black", linewidth=0.8)
    ax.axvline(trajectory.PARITY, color="grey", linewidth=0.8, linestyle=":")
    ax.set(ylim=(0, 5), xlabel=r"$x = cBK\lambda$: batch at a constant drift rate", ylabel="samples to target / those of a vanishing batch")
    ax.set_title("a whole run saves samples with batch until x = 1.28; one step says the opposite", fontsize=10)
    ax.legend()
    return figure, pd.DataFrame(rows, columns=["series", "x", "relative_samples"])


def first_passage() -> tuple[Any, pd.DataFrame]:
    """Distribution of samples to failure between L2 and L1, with simulated walks, and its median against the drift rate."""
    rng, rows, steps = np.random.default_rng(3), [], 500
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    tau = np.geomspace(0.02, 20, 120)
    for number, pe in enumerate((0.1, 1.0, 10.0, 100.0)):
        law = failure.first_passage(1.0, 1 / pe, 1.0)
        left.plot(tau, law.cdf(tau), color=f"C{number}", label=f"Pe = {pe:g}")
        rows += [("cdf", pe, t, f) for t, f in zip(tau, law.cdf(tau), strict=True)]
        walk = np.cumsum(1 / steps + math.sqrt(1 / pe / steps) * rng.standard_normal((800, 6 * steps)), axis=1)
        before = np.concatenate([np.zeros((800, 1)), walk[:, :-1]], axis=1)
        # A walk below the threshold at both ends of a step has passed it in between with the Brownian bridge's chance
        between = np.exp(-2 * np.maximum(1 - before, 0) * np.maximum(1 - walk, 0) * pe * steps)
        passed = rng.random(walk.shape) < between
        hit = np.where(passed.any(axis=1), passed.argmax(axis=1) + 1, np.inf) / steps
        for t in np.geomspace(0.1, 5, 9):
            left.plot([t], [(hit <= t).mean()], "o", color=f"C{number}", markersize=4)
            rows.append(("simulated", pe, t, (hit <= t).mean()))
    left.set(xscale="log", xlabel=r"samples / mean, $n\,c\,r/D$", ylabel="share of runs that have collapsed", title="L2 (Pe small) to L1 (Pe large)")
    left.legend()
    c = np.geomspace(1e-2, 10, 70)  # in units of D r/w, so that Pe = 1/c
    laws = [failure.first_passage(x, x**2, 1.0) for x in c]
    low, median, high = (np.array([law.ppf(q) for law in laws]) for q in (0.05, 0.5, 0.95))
    right.plot(c, median, color="C0", label="median")
    right.fill_between(c, low, high, color="C0", alpha=0.15, linewidth=0, label="5% to 95%")
    diffusive = failure.first_passage(0.0, 1.0, 1.0).median() / c**2
    right.plot(c, 1 / c, "--", color="C1", label="L1: 1/c")
    right.plot(c, diffusive, ":", color="C3", label=r"L2: $1/c^2$")
    right.set(
        xscale="log",
        yscale="log",
        ylim=(1e-3, 1e3),
        xlabel=r"drift rate $c$ in units of $D\,r/w$",
        ylabel=r"samples to failure",
        title="the median changes its law",
    )
    right.legend()
    rows += [(name, 1 / x, x, y) for name, ys in (("q05", low), ("median", median), ("q95", high)) for x, y in zip(c, ys, strict=True)]
    return figure, pd.DataFrame(rows, columns=["series", "peclet", "x", "y"])


def clip_delay() -> tuple[Any, pd.DataFrame]:
    """Delay of failure by clip 0.2 against batch: dropped gradients alone, and simulated with the survivors' pull.

    Noise fills d directions and the drift rate is c/sqrt(d), so that ratios spread alike in every d.
    """
    per_rollout, c, signal, rows = 4, 8e-3, 0.16, []
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), sharex=True)
    batches = 2 ** np.arange(4, 11)

    def dropped(d: int, updates: np.ndarray) -> np.ndarray:
        world = {"clip": (0.2, 0.2), "drift": signal**2, "spread": math.sqrt(d)}
        share = [clipping.surviving_share(b, c / math.sqrt(d), updates_per_rollout=int(s), **world) for b, s in zip(batches, updates, strict=True)]
        return clipping.delay(np.array(share), "sgd")

    arms = {f"S = {s}": np.full(len(batches), s) for s in (1, 4, 16)} | {r"fixed $S\,B$ = 4096": 4096 // batches}
    for number, (name, updates) in enumerate(arms.items()):
        line = dropped(1024, updates)
        left.plot(batches, line, ".-", color=f"C{number}", label=name)
        rows += [("dropped", name, b, v) for b, v in zip(batches, line, strict=True)]
    left.set(xscale="log", ylabel="samples to failure / without clip", xlabel="batch B", title="dropped gradients alone, 1/share (d = 1,024)")
    left.legend()
    rng = np.random.default_rng(4)
    for number, (d, seeds) in enumerate(((32, 600), (256, 120), (4096, 48))):
        rate, first = c / math.sqrt(d), np.eye(d)[0]
        tilted = trajectory.Quadratic(1e-3 * first, np.ones(d), -1e3 * signal * first)  # gradient: signal along the first coordinate
        moved = []
        for clip in (None, (0.2, 0.2)):
            ends = [trajectory.simulate(tilted, b, rate, at=[48 * b], seeds=seeds, rng=rng, updates_per_rollout=per_rollout, clip=clip) for b in batches]
            moved.append([float((end.theta[0, 0] - tilted.start)[:, 0].mean()) for end in ends])
        ratio = np.array(moved[0]) / np.array(moved[1])
        line = dropped(d, np.full(len(batches), per_rollout))
        right.plot(batches, ratio, "o-", color=colour(32 * 4**number), linewidth=0.8, markersize=4, label=f"simulated, d = {d:,}")
        right.plot(batches, line, "--", color=colour(32 * 4**number), linewidth=0.8, label=f"dropped gradients alone, d = {d:,}")
        rows += [("simulated", f"d = {d}", b, v) for b, v in zip(batches, ratio, strict=True)]
        rows += [("dropped", f"d = {d}", b, v) for b, v in zip(batches, line, strict=True)]
    right.axhline(per_rollout, color="grey", linestyle=":", linewidth=0.8)
    right.set(xscale="log", yscale="log", xlabel="batch B", title="S = 4: what survives pulls back (dotted: the bound S)")
    right.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    right.minorticks_off()
    right.legend(fontsize=8)
    return figure, pd.DataFrame(rows, columns=["series", "arm", "batch", "delay"])


def plan_vertex() -> tuple[Any, pd.DataFrame]:
    """Samples at two settings that both budgets allow, lines of equal progress, and the vertex where it is best."""
    p, r = np.array([2.6, 1.0]), np.array([1.6e-5, 0.5e-5])
    samples, safety = 100_000.0, 0.8
    best = program.most_progress(p, r, samples=samples, safety=safety)
    corners = np.array([(0, 0), (safety / r[0], 0), best, (0, samples)])
    figure, ax = plt.subplots(figsize=(6, 4.8))
    ax.fill(*corners.T, color="C0", alpha=0.15, label="within both budgets")
    x1 = np.linspace(0, samples, 60)
    lines = {"horizon": samples - x1, "hazard": (safety - r[0] * x1) / r[1], "best progress": (p @ best - p[0] * x1) / p[1]}
    for (name, x2), style in zip(lines.items(), ("-", "-", "--"), strict=True):
        ax.plot(x1, x2, style, label={"horizon": r"$x_1+x_2=N$", "hazard": r"$r_1x_1+r_2x_2=D$"}.get(name, "equal progress"))
    ax.plot(*best, "r*", markersize=16, label=f"two stages: {best[0]:,.0f} then {best[1]:,.0f}", clip_on=False)
    ax.set(xlim=(0, samples), ylim=(0, 1.15 * samples), xlabel="completions at setting 1 (fast, hazardous)", ylabel="completions at setting 2")
    ax.legend(fontsize=8)
    table = pd.concat([pd.DataFrame({"line": name, "x1": x1, "x2": x2}) for name, x2 in lines.items()])
    return figure, pd.concat([table, pd.DataFrame({"line": "vertex", "x1": [best[0]], "x2": [best[1]]})], ignore_index=True)


FIGURES = {
    "theory_progress": one_step,
    "theory_trajectory": whole_run,
    "theory_first_passage": first_passage,
    "theory_clipping": clip_delay,
    "theory_planner": plan_vertex,
}


def draw_all(folder: Path) -> None:
    """Every figure."""
    with mpl.rc_context(STYLE):
        for name, draw in FIGURES.items():
            save(name, draw(), folder)
