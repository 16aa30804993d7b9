"""Ratio clipping: which gradients survive, how the share moves with the batch, and what the survivors do (TC4, TC5).

Statement: f(j) = Phi((e - c j m)/(c g sqrt(j))) of completions survive at age j = kB. For m >= 0 it falls with age, so the share
falls with B at fixed S >= 2, is 1 at S = 1, and rises at fixed rollout size S B when B is multiplied by a whole number (not for
any larger B); for m < 0 it need not be monotone. A wider range keeps more. Counting dropped gradients alone, an L1 clock is delayed
at most S times (SGD) or sqrt(S) times (Adam with a slow second moment). What survives is also biased: it pulls back along the
displacement, by 2 phi(z) sqrt(j/d) of what noise adds. Once S B is no longer small against the d directions of the noise that
delays failure further, past both bounds.
"""

from __future__ import annotations

import numpy as np
import sympy as sp
from scipy import integrate, stats

from theory.first_passage import normal_cdf
from theory.result import Result, prove, prove_close, prove_equal
from twoclocks import clipping


def literal_share(batch: float, c: float, updates: int, bounds: tuple[float, float], m: float, g: float, positive: float) -> float:
    """The share by integrating the normal density of Y up to each bound, update by update."""
    total = 0.0
    for k in range(updates):
        for e, part in zip(bounds, (1 - positive, positive), strict=True):
            mean, sd = k * c * batch * m, c * g * np.sqrt(k * batch)
            total += part * (1.0 if k == 0 else integrate.quad(stats.norm(mean, sd).pdf, mean - 12 * sd, min(e, mean + 12 * sd), epsabs=1e-13, limit=200)[0])
    return total / updates


def derive() -> Result:
    """Derive, prove the closed forms of `twoclocks.clipping`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    j, batch, c, g, e, k = sp.symbols("j B c g e k", positive=True)
    m = sp.Symbol("m", nonnegative=True)
    drift = sp.Symbol("m", real=True)

    # 1. Y ~ N(c j m, c^2 j g^2); PPO's min keeps the gradient while Y <= e.
    z = (e - c * j * drift) / (c * g * sp.sqrt(j))
    prove_equal(clipping.bound_in_sds(j, c, sp.sqrt(j), threshold=e, drift=drift, spread=g), z, "clipping.bound_in_sds")
    survival = normal_cdf(z)

    # 2. Lemma: f falls with age for m >= 0. f' = density(z) z', and z' = -(e + c j m)/(2 c g j^(3/2)).
    slope = sp.simplify(sp.diff(z, j))
    prove_equal(slope, -(e + c * j * drift) / (2 * c * g * j ** sp.Rational(3, 2)), "slope of z in age")
    prove((-slope.subs(drift, m)).is_positive or sp.simplify(-slope.subs(drift, m)).is_positive, "f falls with age for m >= 0")

    # 3. Fixed S: ages are kB, so every term with k >= 1 falls with B; with S = 1 only k = 0 is left, where f = 1.
    aged = z.subs({j: k * batch, drift: m})
    prove(sp.simplify(-sp.diff(aged, batch)).is_positive, "fixed S: every term falls with B")
    prove_equal(sp.limit(survival.subs(drift, 1).subs({c: 1, g: 1, e: 1}), j, 0, "+"), sp.Integer(1), "nothing is clipped at age 0")

    # 4. m < 0: z = (1 + j)/sqrt(j) with e = c = g = 1, m = -1 is least at j = 1, so with S = 2 the share rises from B = 1 to 4.
    falling = z.subs({e: 1, c: 1, g: 1, drift: -1})
    prove(falling.subs(j, 4) > falling.subs(j, 1), "counter-example for m < 0")

    # 5. Fixed rollout size R = S B: with n times the batch only the first age of every n is left, so the share changes by
    #    differences f(i n B) - f((i n + r) B) of a falling f: it rises.
    f = sp.Function("f")
    for n, blocks in ((2, 1), (2, 4), (3, 2), (5, 3)):
        fine = sum(f(i * batch) for i in range(n * blocks)) / (n * blocks)
        coarse = sum(f(n * i * batch) for i in range(blocks)) / sp.Integer(blocks)
        falls = sum(f(n * i * batch) - f((n * i + r) * batch) for i in range(blocks) for r in range(n)) / (n * blocks)
        prove_equal(coarse - fine, falls, "fixed rollout size: the share changes by differences of a falling f")

    # 6. Widening: f rises with e. The bounds of a range [1 - low, 1 + high] are -log(1 - low) for negative advantages, whose
    #    Y is minus the log-ratio, and log(1 + high) for positive ones.
    prove(sp.diff(z, e).is_positive, "f rises with the bound")
    low, high = sp.symbols("l h", positive=True)
    ranges = ((0.2, 0.2), (0.2, 0.28), (0.5, 5.0))
    prove_close([clipping.thresholds(pair) for pair in ranges], [[float(-sp.log(1 - x)), float(sp.log(1 + y))] for x, y in ranges], "clipping.thresholds")
    prove(clipping.thresholds((1.0, 5.0))[0] == np.inf and clipping.thresholds(None) == (np.inf, np.inf), "no bound is an infinite threshold")
    for size, rate, updates, pair, mean, positive in (
        (64.0, 1e-4, 4, (0.2, 0.2), 20.0, 0.5),
        (512.0, 1e-4, 4, (0.2, 0.28), 5.0, 0.3),
        (64.0, 4e-4, 16, (0.5, 5.0), 0.0, 0.5),
        (256.0, 2e-4, 3, (0.2, 0.2), -10.0, 0.5),
    ):
        shipped = clipping.surviving_share(size, rate, updates_per_rollout=updates, clip=pair, drift=mean, spread=40.0, positive=positive)
        derived = literal_share(size, rate, updates, clipping.thresholds(pair), mean, 40.0, positive)
        prove_close(shipped, derived, "clipping.surviving_share")

    #    Result 5 is not for any larger batch: with f = 1 below age 2.9 and 0 above, R = 6 has share 2/3 at B = 2 and 1/2 at B = 3.
    edge = {"clip": (0.9, float(sp.exp(2.9)) - 1), "drift": 1.0, "spread": 1e-3, "positive": 1.0}
    shares = [clipping.surviving_share(b, 1.0, updates_per_rollout=6 // b, **edge) for b in (2, 3)]
    prove_close(shares, [2 / 3, 1 / 2], "counter-example at fixed rollout size")

    # 7. Delay, counting dropped gradients alone. SGD moves by f_k mu an update, with variance f_k sigma^2/B: 1/share under L1 and
    #    L2. Adam divides by the root mean square of what survives, sqrt(share) sigma/sqrt(B): sum f_k/sqrt(share) over S is
    #    sqrt(share), and its variance stays. As f_0 = 1, share >= 1/S.
    share, updates = sp.symbols("rho S", positive=True)
    prove_equal(clipping.delay(share, "sgd"), 1 / share, "clipping.delay of SGD")
    prove_equal(sp.nsimplify(clipping.delay(share, "adam"), rational=True), 1 / (share / sp.sqrt(share)), "clipping.delay of Adam")
    prove_equal(clipping.delay(share, "sgd", "diffusion"), share / share**2, "clipping.delay of SGD, diffusion")
    prove_equal(clipping.delay(share, "adam", "diffusion"), share / share, "clipping.delay of Adam, diffusion")
    prove_equal(clipping.delay(share, "sgd").subs(share, 1 / updates), updates, "bound of SGD's delay")
    prove_equal(sp.nsimplify(clipping.delay(share, "adam"), rational=True).subs(share, 1 / updates), sp.sqrt(updates), "bound of Adam's delay")

    # 8. What survives. Along the displacement's direction u a gradient is mu + sigma xi, kept while xi <= z: the kept mean is
    #    mu Phi(z) - sigma phi(z), across u it is mu Phi(z) alone. The survivors pull back towards the rollout policy.
    xi, bound = sp.symbols("xi z", real=True)
    density = sp.exp(-(xi**2) / 2) / sp.sqrt(2 * sp.pi)
    moments = [sp.integrate(xi**power * density, (xi, -sp.oo, bound)) for power in range(3)]
    phi = density.subs(xi, bound)
    for found, expected in zip(moments, (normal_cdf(bound), -phi, normal_cdf(bound) - bound * phi), strict=True):
        prove_equal(found, expected, "moments of a truncated normal")
    #    With L = c g sqrt(j) the spread of Y and sigma = g/sqrt(d), an update moves c B (Phi s - phi u) in the mean: L^2 loses
    #    2 L sigma c B phi to the pull and gains c^2 B g^2 from noise. Their ratio: negligible while S B << d.
    d = sp.Symbol("d", positive=True)
    spread, sigma = c * g * sp.sqrt(j), g / sp.sqrt(d)
    pull = (2 * spread * sigma * c * batch * phi) / (c**2 * batch * g**2)
    prove_equal(clipping.pull_back(phi, j / d), pull, "clipping.pull_back")
    prove_equal(sp.limit(pull.subs({j: k * batch, bound: 1}), d, sp.oo), sp.Integer(0), "no pull in many dimensions")

    named = sp.Symbol
    return Result(
        name="clipping",
        statement="Share of gradients that survive a ratio clip: falls with B at fixed S >= 2, is 1 at S = 1, rises with whole multiples at fixed S B.",
        assumptions=(
            r"$Y$, log-ratio in the advantage direction at age $j = kB$ samples, is $\mathcal N(c j m, c^2 j g^2)$: the displacement does not feel the clip",
            r"PPO's min drops the gradient where $Y > e$, with $e = e_{+}$ for positive and $e_{-}$ for negative advantages",
            r"$m \ge 0$ for the monotonicity; delays are those of an L1 clock and count dropped gradients alone; $d$ directions of noise",
        ),
        equations={
            "survival": (sp.Function("f")(j), survival),
            "slope": (named(r"\partial z/\partial j"), slope),
            "bound_high": (named(r"e_{+}"), sp.log(1 + high)),
            "bound_low": (named(r"e_{-}"), -sp.log(1 - low)),
            "delay_sgd": (named(r"\mathrm{delay_{SGD}}"), 1 / share),
            "delay_adam": (named(r"\mathrm{delay_{Adam}}"), 1 / sp.sqrt(share)),
            "kept": (named(r"E[\xi;\,\xi \le z]"), -phi),
            "pull": (named(r"\mathrm{pull/noise}"), sp.simplify(pull)),
        },
        proven="SymPy symbols through `clipping.bound_in_sds` and `delay`; `surviving_share` against literal integration to 1e-9.",
        simulated="tests/test_trajectory.py (clipped updates against drawn completions); analysis figure theory_clipping.",
        carries="TC4 (fixed S, with S = 1 and fixed S B as controls) and TC5.",
    )
