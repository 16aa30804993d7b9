"""Which limit of which optimizer each learning-rate rule is: linear, square root, surge, constant.

Statement: the best learning rate of SGD is eta_max/(1 + B_noise/B), linear in B below B_noise. That of a sign-like update
is a sqrt(B)/(h0 + B h1): the square-root rule below B_noise = h0/h1, a peak there, and a fall as B^-1/2 beyond it, the
surge of Li et al. Saturation moves the peak to B_noise/(1 - B_noise/B_sat), takes it away where B_sat <= B_noise, and
ends in a constant. At the best learning rate both obey the same hyperbola.
"""

from __future__ import annotations

import sympy as sp

from theory.result import Result, prove_equal
from twoclocks import progress


def derive() -> Result:
    """Derive and return the result.

    Raises
    ------
    ProofError
        If a limit, or the agreement with the published surge law, does not follow.
    """
    batch, eta, a, h0, h1, x, b_sat = sp.symbols("B eta a h_0 h_1 x B_sat", positive=True)
    square, coherent, noise = sp.symbols("G2 kappa n", positive=True)  # |mu|^2, mu.H.mu, tr(H Sigma)

    # 1. SGD: v = g has mean mu and covariance Sigma/B, so dJ = eta |mu|^2 - eta^2/2 (mu.H.mu + tr(H Sigma)/B).
    gain_sgd = eta * square - eta**2 / 2 * (coherent + noise / batch)
    (best_sgd,) = sp.solve(sp.diff(gain_sgd, eta), eta)
    b_noise = noise / coherent
    prove_equal(best_sgd, square / coherent / (1 + b_noise / batch), "best learning rate of SGD")

    # 2. A sign-like update (theory.critical_batch): best c times sqrt(B).
    best = sp.sqrt(batch) * progress.best_drift_rate(batch, a=a, h0=h0, h1=h1)

    # 3. Local exponents d log eta*/d log B with x = B/B_noise: linear is SGD's limit, the square root Adam's.
    exponent = lambda lr, at: sp.simplify((batch * sp.diff(lr, batch) / lr).subs(batch, x * at))  # noqa: E731
    slope_sgd, slope = exponent(best_sgd, b_noise), exponent(best, h0 / h1)
    for found, limits in ((slope_sgd, (1, sp.Rational(1, 2), 0)), (slope, (sp.Rational(1, 2), 0, -sp.Rational(1, 2)))):
        got = (sp.limit(found, x, 0), found.subs(x, 1), sp.limit(found, x, sp.oo))
        for value, expected, where in zip(got, limits, ("B << B_noise", "B = B_noise", "B >> B_noise"), strict=True):
            prove_equal(value, sp.sympify(expected), f"exponent of the best learning rate at {where}")

    # 4. Past saturation the fall ends: a -> a phi, h1 -> h1 phi^2.
    phi = sp.nsimplify(progress.saturation(batch, b_sat), rational=True)
    saturated = sp.sqrt(batch) * progress.best_drift_rate(batch, a=a * phi, h0=h0, h1=h1 * phi**2)
    plateau = sp.limit(saturated, batch, sp.oo)
    prove_equal(plateau, a * sp.sqrt(b_sat) / (h0 + h1 * b_sat), "best learning rate past saturation")

    #    With B_eff = B phi^2 < B_sat it is a sqrt(B_eff)/(h0 + B_eff h1), and B_eff = h0/h1 at the peak.
    effective = sp.simplify(batch * phi**2)
    prove_equal(saturated, a * sp.sqrt(effective) / (h0 + effective * h1), "saturated best learning rate in the effective batch")
    (peak,) = sp.solve(sp.Eq(effective, h0 / h1), batch)
    prove_equal(peak, (h0 / h1) / (1 - h0 / h1 / b_sat), "peak with saturation")
    prove_equal(sp.limit(effective, batch, sp.oo), b_sat, "the effective batch stays below B_sat: no peak unless B_noise < B_sat")

    # 5. Surge law (Li et al., arXiv 2405.14578): eps_max / ((sqrt(Bn/B) + sqrt(B/Bn))/2) with its own constants, from
    #    a = sqrt(2/pi) sum mu^2/sigma and h1 = (2/pi) sum_{i != j}.
    drift, pairs = sp.symbols("A Q", positive=True)  # sum mu_i^2/sigma_i; sum_{i != j} s_i s_j H_ij
    surge_noise = sp.pi * h0 / (2 * pairs)
    surge_max = sp.sqrt(surge_noise / (2 * sp.pi)) * drift / h0
    surge = surge_max / ((sp.sqrt(surge_noise / batch) + sp.sqrt(batch / surge_noise)) / 2)
    ours = best.subs({a: sp.sqrt(2 / sp.pi) * drift, h1: 2 / sp.pi * pairs})
    prove_equal(ours, surge, "agreement with the surge law")

    # 6. Gain of an update at the best learning rate, and the hyperbola of updates against samples to a fixed gain.
    per_update = sp.simplify(progress.per_update(batch, best, sp.sqrt(batch), a=a, h0=h0, h1=h1))
    most = sp.limit(per_update, batch, sp.oo)
    prove_equal(per_update, most / (1 + h0 / h1 / batch), "gain of an update at the best learning rate")
    prove_equal(sp.simplify(gain_sgd.subs(eta, best_sgd)), square**2 / (2 * coherent) / (1 + b_noise / batch), "the same of SGD")
    updates = 1 / per_update
    samples = batch * updates
    fewest_updates, fewest_samples = sp.limit(updates, batch, sp.oo), sp.limit(samples, batch, 0)
    prove_equal((updates / fewest_updates - 1) * (samples / fewest_samples - 1), sp.Integer(1), "hyperbola of updates and samples")
    prove_equal(fewest_samples / fewest_updates, h0 / h1, "B_noise is least samples over least updates")

    named = sp.Symbol
    return Result(
        name="scaling_rules",
        statement="Linear, square-root, surge and constant learning rates are limits of two laws; below the noise batch SGD's is linear, Adam's a root.",
        assumptions=(
            r"one update against a local quadratic with $a, h_0, h_1 > 0$; each batch runs at its own best learning rate",
            r"SGD: $\|\mu\|^2 = G_2$, $\mu^\top H\mu = \kappa$, $\mathrm{tr}(H\Sigma) = n$; $x = B/B_{\mathrm{noise}}$",
            r"surge: $B_{\mathrm{noise}} < B_{\mathrm{sat}}$; slopes and gains are those without saturation",
        ),
        equations={
            "sgd": (named(r"\eta^{*}_{\mathrm{SGD}}"), best_sgd),
            "adam": (named(r"\eta^{*}_{\mathrm{Adam}}"), best),
            "slope_sgd": (named(r"\partial\log\eta^{*}_{\mathrm{SGD}}/\partial\log B"), slope_sgd),
            "slope_adam": (named(r"\partial\log\eta^{*}_{\mathrm{Adam}}/\partial\log B"), slope),
            "peak": (named(r"\arg\max_B\eta^{*}_{\mathrm{Adam}}"), peak),
            "plateau": (named(r"\eta^{*}_{\mathrm{Adam}}(B\to\infty)"), plateau),
            "update": (named(r"E[\Delta J]^{*}"), sp.simplify(per_update)),
            "noise": (named(r"B_{\mathrm{noise}}"), h0 / h1),
        },
        proven="Limits, exponents and the published surge law by SymPy, from `progress.best_drift_rate`, `per_update` and `saturation`.",
        simulated="tests/test_progress.py (the Monte-Carlo model's noise batch); published law compared symbol for symbol.",
        carries="TC2: why the square-root rule stops at the noise batch.",
    )
