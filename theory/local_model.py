"""One sign-like or normalised Adam update against a local quadratic: gain per update and per sample (TC1).

Statement: in the noise-dominated regime the expected gain per sample is p(B, c) = c a - c^2/2 (h0 + B h1) with
c = eta/sqrt(B); its first-order part does not depend on B exactly along the square-root rule, its curvature loss
grows linearly in B.
"""

from __future__ import annotations

import sympy as sp

from theory.result import Result, prove_equal
from twoclocks import progress

DIMENSION = 3  # enough for every kind of term: diagonal, and off-diagonal between distinct pairs


def sign_moment() -> tuple[sp.Expr, sp.Expr, sp.Symbol, sp.Symbol]:
    """E[sign g] for g ~ N(mu, sigma^2/B): exact, and to leading order in s sqrt(B), s = mu/sigma.

    Returns
    -------
    exact, leading : Expr
        erf(s sqrt(B/2)) and s sqrt(2B/pi).
    batch, s : Symbol
    """
    x = sp.Symbol("x", real=True)
    s, batch = sp.symbols("s B", positive=True)
    # 1. The batch mean in units of sigma/sqrt(B) is N(s sqrt(B), 1).
    centre = s * sp.sqrt(batch)
    density = sp.exp(-((x - centre) ** 2) / 2) / sp.sqrt(2 * sp.pi)
    # 2. E[sign] = P(g > 0) - P(g < 0).
    above, below = sp.integrate(density, (x, 0, sp.oo)), sp.integrate(density, (x, -sp.oo, 0))
    exact = sp.simplify((above - below).rewrite(sp.erf))
    prove_equal(exact, sp.erf(s * sp.sqrt(batch / 2)), "E[sign g] is an error function")
    # 3. Noise-dominated: s sqrt(B) << 1, keep the leading order in s.
    leading = sp.series(exact, s, 0, 2).removeO()
    return exact, sp.simplify(leading), batch, s


def normalised_moment(batch: sp.Symbol, s: sp.Symbol) -> tuple[sp.Expr, sp.Expr]:
    """E[v] for Adam whose slow second moment has settled, v = g/sqrt(E g^2): exact, and to leading order in s sqrt(B)."""
    exact = s / sp.sqrt(s**2 + 1 / batch)  # both in units of sigma; E[v^2] = 1 exactly
    return sp.simplify(exact), sp.series(exact, s, 0, 2).removeO()


def sign_correlation() -> tuple[sp.Expr, sp.Expr]:
    """E[sign x sign y] of unit normals with means alpha, beta and correlation rho, to second order in the means.

    Returns
    -------
    zeroth, second : Expr
        What correlated noise puts into h0, and into h1 in place of (2/pi) alpha beta.
    """
    rho = sp.Symbol("rho", real=True)
    alpha, beta = sp.symbols("alpha beta", real=True)
    # 1. No means: y = rho x + sqrt(1 - rho^2) z: x > 0 and y > 0 is a wedge of the isotropic (x, z) plane, pi minus the angle between
    # the two half-planes' normals (1, 0) and (rho, sqrt(1 - rho^2)).
    both_positive = (sp.pi - sp.acos(rho)) / (2 * sp.pi)
    correlation = 4 * both_positive - 1  # P(same sign) - P(different) = 2 (2 P) - 1
    arcsine = 2 / sp.pi * sp.asin(rho)
    prove_equal(correlation.rewrite(sp.asin), arcsine, "correlation of signs is an arcsine")
    # 2. Moving the mean of x by d alpha flips signs at x = 0, density phi(alpha), where y is N(beta - rho alpha, 1 - rho^2):
    #    the derivative is 2 phi(alpha) E[sign y | x = 0]. Its own derivatives at zero means give the second order.
    normal = sp.exp(-(alpha**2) / 2) / sp.sqrt(2 * sp.pi)
    slope = 2 * normal * sp.erf((beta - rho * alpha) / sp.sqrt(2 * (1 - rho**2)))
    at_zero = {alpha: 0, beta: 0}
    same, cross = (sp.simplify(sp.diff(slope, x).subs(at_zero)) for x in (alpha, beta))
    prove_equal(slope.subs(at_zero), sp.Integer(0), "no first order in the means")
    second = same * (alpha**2 + beta**2) / 2 + cross * alpha * beta
    claimed = 2 / sp.pi * (alpha * beta - rho * (alpha**2 + beta**2) / 2) / sp.sqrt(1 - rho**2)
    prove_equal(second, claimed, "second order of the correlation of signs")
    prove_equal(claimed.subs(rho, 0), 2 / sp.pi * alpha * beta, "independent noise")
    return arcsine, claimed


def derive() -> Result:
    """Derive, prove `progress.per_update` and `progress.per_sample`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    eta, c, batch0, eta0, alpha, gain = sp.symbols("eta c B_0 eta_0 alpha K", positive=True)
    a, h0, h1 = sp.symbols("a h_0 h_1", real=True)
    mu = sp.symbols(f"mu_1:{DIMENSION + 1}", real=True)
    sigma = sp.symbols(f"sigma_1:{DIMENSION + 1}", positive=True)
    hessian = sp.Matrix(DIMENSION, DIMENSION, lambda i, j: sp.Symbol(f"H_{min(i, j) + 1}{max(i, j) + 1}", real=True))

    # 1. Moments of the update direction v, coordinates independent: E[v_i^2] = 1, E[v_i] = K sqrt(B) s_i to leading order.
    exact, leading, batch, s = sign_moment()
    exact_adam, leading_adam = normalised_moment(batch, s)
    gains = {"sign": sp.sqrt(2 / sp.pi), "adam": sp.Integer(1)}
    prove_equal(leading, gains["sign"] * sp.sqrt(batch) * s, "mean step of a sign update")
    prove_equal(leading_adam, gains["adam"] * sp.sqrt(batch) * s, "mean step of normalised Adam")
    mean = [gain * sp.sqrt(batch) * m / sd for m, sd in zip(mu, sigma, strict=True)]
    second = lambda i, j: sp.Integer(1) if i == j else mean[i] * mean[j]  # noqa: E731

    # 2. theta moves by eta v; with H the Hessian of -J, dJ = eta mu.v - eta^2/2 v.H v.
    cells = [(i, j) for i in range(DIMENSION) for j in range(DIMENSION)]
    first_order = eta * sum(m * v for m, v in zip(mu, mean, strict=True))
    gained = first_order - eta**2 / 2 * sum(hessian[i, j] * second(i, j) for i, j in cells)

    # 3. Read off a, h0, h1. Correlated noise changes h0 (by H_ij (2/pi) arcsin rho_ij) and h1: see `sign_correlation`.
    terms = {
        a: gain * sum(m**2 / sd for m, sd in zip(mu, sigma, strict=True)),
        h0: sum(hessian[i, i] for i in range(DIMENSION)),
        h1: gain**2 * sum(mu[i] / sigma[i] * mu[j] / sigma[j] * hessian[i, j] for i, j in cells if i != j),
    }
    arcsine, correlated = sign_correlation()
    per_update = eta * sp.sqrt(batch) * a - eta**2 / 2 * (h0 + batch * h1)
    prove_equal(per_update.subs(terms), gained, "gain of one update in terms of a, h0, h1")

    # 4. Per sample, in the drift rate c = eta/sqrt(B).
    per_sample = sp.expand(per_update.subs(eta, c * sp.sqrt(batch)) / batch)

    # 5. Along eta0 (B/B0)^alpha the first-order part per sample is independent of B for alpha = 1/2 and no other alpha.
    drift = eta0 * (batch / batch0) ** alpha * sp.sqrt(batch) * a / batch
    exponent = sp.simplify(batch * sp.diff(drift, batch) / drift)
    prove_equal(exponent, alpha - sp.Rational(1, 2), "exponent of first-order drift per sample in B")

    # 6. The library ships exactly these.
    prove_equal(progress.per_update(batch, eta, sp.sqrt(batch), a=a, h0=h0, h1=h1), per_update, "progress.per_update")
    prove_equal(progress.per_sample(batch, c, a=a, h0=h0, h1=h1), per_sample, "progress.per_sample")

    named = sp.Symbol
    return Result(
        name="local_model",
        statement="Expected gain of a sign-like or normalised Adam update against a local quadratic; drift per sample is kept by the square-root rule alone.",
        assumptions=(
            r"per-sample gradient of coordinate $i$ is $\mathcal N(\mu_i, \sigma_i^2)$, coordinates independent",
            r"noise-dominated: $\sqrt B\,\mu_i/\sigma_i \ll 1$; moments to leading order, $E[v_i] = K\sqrt B\,\mu_i/\sigma_i$",
            r"update $\eta v$ with $v = \mathrm{sign}(\bar g)$, or $v = \bar g/\sqrt{E\bar g^2}$; the objective is quadratic with Hessian $-H$ over one update",
            r"correlation $\rho_{ij}$ of noise adds $H_{ij}$ times its zeroth order to $h_0$ and replaces $K^2 s_i s_j$ in $h_1$ by its second",
        ),
        equations={
            "moment": (named(r"E[\operatorname{sign} \bar g]"), exact),
            "moment_adam": (named(r"E[\bar g/\sqrt{E\bar g^2}]"), exact_adam),
            "gain_sign": (named(r"K_{\mathrm{sign}}"), gains["sign"]),
            "gain_adam": (named(r"K_{\mathrm{Adam}}"), gains["adam"]),
            "correlation": (named(r"E[\operatorname{sign} x \operatorname{sign} y]_0"), arcsine),
            "correlated": (named(r"E[\operatorname{sign} x \operatorname{sign} y]_2"), correlated),
            "a": (a, terms[a]),
            "h0": (h0, terms[h0]),
            "h1": (h1, sp.simplify(terms[h1])),
            "update": (named(r"E[\Delta J]"), per_update),
            "sample": (sp.Function("p")(batch, c), per_sample),
            "exponent": (named(r"\partial \log(\mathrm{drift})/\partial \log B"), exponent),
        },
        proven="SymPy symbols through `progress.per_update` and `progress.per_sample`; the differences simplify to zero.",
        simulated="tests/test_progress.py (60 coordinates, 1.5% for B up to 256); analysis figure theory_progress.",
        carries="TC1 (a): drift per sample; the one-step reading of TC1 (b), for which see the trajectory.",
    )
