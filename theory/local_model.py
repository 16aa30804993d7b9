"""One sign-like Adam update against a local quadratic: gain per update and per sample (TC1).

Statement: in the noise-dominated regime the expected gain per sample is p(B, c) = c a - c^2/2 (h0 + B h1) with
c = eta/sqrt(B); its first-order part does not depend on B exactly along the square-root rule, its curvature loss
grows linearly in B.
"""

from __future__ import annotations

import sympy as sp

from theory.result import Result, prove_equal
from twoclocks import progress

DIMENSION = 3  # enough for every kind of term: diagonal, and off-diagonal between distinct pairs


def sign_moment() -> tuple[sp.Expr, sp.Expr, sp.Expr, sp.Symbol]:
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


def derive() -> Result:
    """Derive, prove `progress.per_update` and `progress.per_sample`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    eta, c, batch0, eta0, alpha = sp.symbols("eta c B_0 eta_0 alpha", positive=True)
    a, h0, h1 = sp.symbols("a h_0 h_1", real=True)
    mu = sp.symbols(f"mu_1:{DIMENSION + 1}", real=True)
    sigma = sp.symbols(f"sigma_1:{DIMENSION + 1}", positive=True)
    hessian = sp.Matrix(DIMENSION, DIMENSION, lambda i, j: sp.Symbol(f"H_{min(i, j) + 1}{max(i, j) + 1}", real=True))

    # 1. Moments of the update direction v = sign(g), coordinates independent: E[v_i] to leading order, E[v_i^2] = 1.
    exact, leading, batch, s = sign_moment()
    mean = [leading.subs(s, m / sd) for m, sd in zip(mu, sigma, strict=True)]
    second = lambda i, j: sp.Integer(1) if i == j else mean[i] * mean[j]  # noqa: E731

    # 2. theta moves by eta v; with H the Hessian of -J, dJ = eta mu.v - eta^2/2 v.H v.
    cells = [(i, j) for i in range(DIMENSION) for j in range(DIMENSION)]
    gain = eta * sum(m * v for m, v in zip(mu, mean, strict=True)) - eta**2 / 2 * sum(hessian[i, j] * second(i, j) for i, j in cells)

    # 3. Read off a, h0, h1.
    terms = {
        a: sp.sqrt(2 / sp.pi) * sum(m**2 / sd for m, sd in zip(mu, sigma, strict=True)),
        h0: sum(hessian[i, i] for i in range(DIMENSION)),
        h1: 2 / sp.pi * sum(mu[i] / sigma[i] * mu[j] / sigma[j] * hessian[i, j] for i, j in cells if i != j),
    }
    per_update = eta * sp.sqrt(batch) * a - eta**2 / 2 * (h0 + batch * h1)
    prove_equal(per_update.subs(terms), gain, "gain of one update in terms of a, h0, h1")

    # 4. Per sample, in the drift rate c = eta/sqrt(B).
    per_sample = sp.expand(per_update.subs(eta, c * sp.sqrt(batch)) / batch)

    # 5. Along eta0 (B/B0)^alpha the first-order part per sample is independent of B for alpha = 1/2 and no other alpha.
    first_order = eta0 * (batch / batch0) ** alpha * sp.sqrt(batch) * a / batch
    exponent = sp.simplify(batch * sp.diff(first_order, batch) / first_order)
    prove_equal(exponent, alpha - sp.Rational(1, 2), "exponent of first-order drift per sample in B")

    # 6. The library ships exactly these.
    prove_equal(progress.per_update(batch, eta, sp.sqrt(batch), a=a, h0=h0, h1=h1), per_update, "progress.per_update")
    prove_equal(progress.per_sample(batch, c, a=a, h0=h0, h1=h1), per_sample, "progress.per_sample")

    p = sp.Function("p")(batch, c)
    return Result(
        name="local_model",
        statement="Expected gain of a sign-like Adam update against a local quadratic; drift per sample is kept by the square-root rule alone.",
        assumptions=(
            r"per-sample gradient of coordinate $i$ is $\mathcal N(\mu_i, \sigma_i^2)$, coordinates independent",
            r"noise-dominated: $\sqrt B\,\mu_i/\sigma_i \ll 1$; moments to leading order",
            r"update $\eta\,\mathrm{sign}(\bar g)$; the objective is quadratic with Hessian $-H$ over one update",
        ),
        equations={
            "moment": (sp.Symbol(r"E[\operatorname{sign} \bar g]"), exact),
            "a": (a, terms[a]),
            "h0": (h0, terms[h0]),
            "h1": (h1, sp.simplify(terms[h1])),
            "update": (sp.Symbol(r"E[\Delta J]"), per_update),
            "sample": (p, per_sample),
            "exponent": (sp.Symbol(r"\partial \log(\mathrm{drift})/\partial \log B"), exponent),
        },
    )
