"""Samples to failure as the first passage of a drifted random walk: a distribution, with L1 and L2 as its limits (TC3).

Statement: if displacement has drift c r and variance c^2 w per sample and collapse comes at distance D, the samples to failure
are inverse Gaussian: mean D/(c r), coefficient of variation Pe^-1/2 with Pe = D r/(c w). The mean always goes as 1/c; the
median goes as 1/c where Pe is large (L1) and as 1/c^2 where it is small (L2).
"""

from __future__ import annotations

import numpy as np
import sympy as sp
from scipy import special, stats

from theory.result import Result, prove, prove_close, prove_equal
from twoclocks import failure


def normal_cdf(z: sp.Expr) -> sp.Expr:
    """Phi(z)."""
    return (1 + sp.erf(z / sp.sqrt(2))) / 2


def derive() -> Result:
    """Derive, prove `failure.first_passage`, `mean_passage` and `peclet`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    n, y, drift, diffusion, s = sp.symbols("n y mu q s", positive=True)
    c, r, w, distance, tau, pe = sp.symbols("c r w D tau Pe", positive=True)

    # 1. Chance F(n, y) of having covered the distance y by n samples. Over a small step the distance left changes by
    #    -mu dn + sqrt(q) dW, so F_n = -mu F_y + q/2 F_yy, with F(0, y) = 0 and F(n, 0) = 1. Guess and verify.
    root = sp.sqrt(diffusion * n)
    cdf = normal_cdf((drift * n - y) / root) + sp.exp(2 * drift * y / diffusion) * normal_cdf(-(drift * n + y) / root)
    prove_equal(sp.diff(cdf, n) + drift * sp.diff(cdf, y) - diffusion / 2 * sp.diff(cdf, y, 2), sp.Integer(0), "first passage equation")
    prove_equal(cdf.subs(y, 0), sp.Integer(1), "at the threshold")
    prove_equal(sp.limit(cdf.subs({drift: 1, diffusion: 1, y: 1}), n, 0, "+"), sp.Integer(0), "no time, no passage")
    density = y / sp.sqrt(2 * sp.pi * diffusion * n**3) * sp.exp(-((y - drift * n) ** 2) / (2 * diffusion * n))
    prove_equal(sp.diff(cdf, n), density, "density of the first passage")

    # 2. Moments from the Laplace transform E exp(-s T): the bounded solution of q/2 u'' - mu u' = s u, u(0) = 1.
    transform = sp.exp(y / diffusion * (drift - sp.sqrt(drift**2 + 2 * diffusion * s)))
    prove_equal(diffusion / 2 * sp.diff(transform, y, 2) - drift * sp.diff(transform, y), s * transform, "equation of the transform")
    mean = sp.limit(-sp.diff(transform, s), s, 0)
    square = sp.limit(sp.diff(transform, s, 2), s, 0)
    prove_equal(mean, y / drift, "mean first passage")
    variation = sp.simplify((square - mean**2) / mean**2)
    prove_equal(variation, diffusion / (y * drift), "squared coefficient of variation")

    # 3. In terms of the drift rate: mu = c r, q = c^2 w.
    rates = {drift: c * r, diffusion: c**2 * w, y: distance}
    prove_equal(failure.mean_passage(c * r, distance), mean.subs(rates), "failure.mean_passage")
    prove_equal(failure.peclet(c * r, c**2 * w, distance), 1 / variation.subs(rates), "failure.peclet")
    prove_equal(failure.peclet(c * r, c**2 * w, distance), distance * r / (c * w), "Peclet number in c")

    # 4. In units of the mean, tau = n c r/D, only Pe is left. Large Pe: a step at tau = 1, so the median is D/(c r), L1.
    unit = sp.simplify(cdf.subs({n: tau * y / drift}).subs(diffusion, y * drift / pe))
    for at, expected in ((sp.Rational(1, 2), 0), (sp.Integer(2), 1)):
        value = sp.limit(unit.subs(tau, at).rewrite(sp.erfc), pe, sp.oo)
        prove_equal(value, sp.Integer(expected), f"large Peclet number, tau = {at}")
    # Small Pe: F -> erfc(D/sqrt(2 q n)), whose median is D^2/(2 q erfinv(1/2)^2), L2.
    diffusive = sp.limit(cdf, drift, 0)
    prove_equal(diffusive, sp.erfc(y / sp.sqrt(2 * diffusion * n)), "small Peclet number")
    half = sp.Symbol("z", positive=True)  # erfinv(1/2)
    median = (y**2 / (2 * diffusion * half**2)).subs(rates)
    prove_equal((y / sp.sqrt(2 * diffusion * n)).subs(rates).subs(n, median), half, "median of the diffusive limit")
    for name, law in (("drift", mean.subs(rates)), ("diffusion", median)):
        exponent = sp.simplify(c * sp.diff(law, c) / law)
        prove_equal(sp.nsimplify(failure.LAWS[name][1]), exponent, f"exponent in c of the {name} limit is failure.LAWS[{name!r}]")

    # 5. The shipped distribution on a grid: the derived F with both factors in logs, as exp(2 mu y/q) overflows.
    for mu, q, span in ((1e-5, 1e-6, 1.0), (1e-5, 1e-5, 1.0), (3e-5, 2e-4, 2.0)):
        at = np.geomspace(0.05, 20, 80) * span / mu
        derived = special.ndtr((mu * at - span) / np.sqrt(q * at)) + np.exp(2 * mu * span / q + special.log_ndtr(-(mu * at + span) / np.sqrt(q * at)))
        prove_close(failure.first_passage(mu, q, span).cdf(at), derived, "failure.first_passage")
    at = np.geomspace(1e3, 1e8, 80)
    prove_close(failure.first_passage(0.0, 1e-6, 1.0).cdf(at), special.erfc(1 / np.sqrt(2e-6 * at)), "failure.first_passage without drift")

    # 6. The median's slope in c lies between the limits and reaches them.
    slopes = []
    for number in (1e-4, 1e-2, 1.0, 1e2, 1e4):
        medians = [failure.first_passage(x * 1.0, x**2 / number, 1.0).median() for x in (0.99, 1.01)]
        slopes.append(float(np.diff(np.log(medians))[0] / np.log(1.01 / 0.99)))
    prove(bool(np.all(np.diff(slopes) > 0)), "the median's exponent rises with the Peclet number")
    prove_close([slopes[0], slopes[-1]], [-2.0, -1.0], "the median's exponents at small and large Peclet number", 0.02)
    quartile = float(stats.norm.ppf(0.75))
    prove_close(failure.first_passage(0.0, 1.0, 1.0).median(), 1 / quartile**2, "diffusive median in normal quantiles")

    named = sp.Symbol
    return Result(
        name="first_passage",
        statement="Samples to failure of a drifted random walk are inverse Gaussian; L1 and L2 are the limits of the median in the Peclet number.",
        assumptions=(
            r"one collective coordinate; per sample drift $\mu = c r$ and variance $q = c^2 w$, constant along the run; collapse at distance $D$",
            r"updates small against $D$, so that the walk is continuous; $z = \mathrm{erf}^{-1}(1/2)$",
        ),
        equations={
            "cdf": (named(r"P(E^{*} \le n)"), cdf.subs(y, distance)),
            "density": (sp.Function("f")(n), density.subs(y, distance)),
            "mean": (named(r"E[E^{*}]"), mean.subs(rates)),
            "peclet": (pe, distance * r / (c * w)),
            "variation": (named(r"\mathrm{CV}^2"), variation.subs(rates)),
            "median_drift": (named(r"\mathrm{median}\ (\mathrm{Pe}\to\infty)"), mean.subs(rates)),
            "median_diffusion": (named(r"\mathrm{median}\ (\mathrm{Pe}\to 0)"), median),
        },
        proven="The distribution solves the first-passage equation; moments from its Laplace transform; `failure.first_passage` on a grid to 1e-9.",
        simulated="tests/test_failure.py (simulated walks); analysis figure theory_first_passage.",
        carries="TC3: E* has a spread, and B-invariance alone reads L1 or L2.",
    )
