"""Laws of the samples to collapse (TC3): three threshold hypotheses and the exponents that tell them apart.

Statement: if collapse comes when accumulated drift, accumulated diffusion, or path length passes a threshold, then
E* goes as B^b_B c^b_c with (0, -1), (0, -2) or (1/2, -1). Along eta ~ B^alpha the exponents in B are 1/2 - alpha,
1 - 2 alpha and 1 - alpha: the square-root arm cannot tell drift from diffusion, the fixed-lr arm cannot tell diffusion
from path length, the linear arm tells all three apart. A norm barrier on drift and diffusion together has an exponent
in c between -1 and -2. Past saturation the drift law goes as (1/2, -1), like path length.
"""

from __future__ import annotations

import sympy as sp

from theory.result import Result, prove_equal
from twoclocks import failure, progress


def derive() -> Result:
    """Derive, prove `failure.LAWS` and `failure.samples_to_failure`, and return the result.

    Raises
    ------
    ProofError
        If a shipped exponent or function, or a claim of the statement, does not follow.
    """
    n, batch, batch0, c, c0, d, m, w, g = sp.symbols("N B B_0 c c_0 D m w g", positive=True)
    alpha = sp.Symbol("alpha", real=True)
    eta, updates = c * sp.sqrt(batch), n / batch

    # 1. What N samples accumulate. The mean of a noise-dominated update is eta sqrt(B) m (theory.local_model, E[sign g]
    #    to leading order), its variance eta^2 w, and its length eta g whatever the batch.
    accumulated = {
        "drift": updates * eta * sp.sqrt(batch) * m,
        "diffusion": sp.sqrt(updates * eta**2 * w),
        "constant step": updates * eta * g,
    }

    # 2. Each reaches the threshold D at E*, a power law in B and c whose exponents are the shipped ones.
    solutions, along = {}, {}
    for name, meter in accumulated.items():
        (solutions[name],) = sp.solve(sp.Eq(meter, d), n)
        exponents = tuple(sp.simplify(x * sp.diff(solutions[name], x) / solutions[name]) for x in (batch, c))
        for symbol, derived, shipped in zip(("b_B", "b_c"), exponents, failure.LAWS[name], strict=True):
            prove_equal(sp.nsimplify(shipped), derived, f"failure.LAWS[{name!r}] {symbol}")
        reference = solutions[name].subs({batch: batch0, c: c0})
        law = {"samples": reference, "batch0": batch0, "drift_rate0": c0, "b_batch": exponents[0], "b_drift": exponents[1]}
        prove_equal(failure.samples_to_failure(batch, c, **law), solutions[name], f"failure.samples_to_failure ({name})")
        # 3. Along eta = eta0 (B/B0)^alpha, c goes as B^(alpha - 1/2).
        along[name] = sp.expand(exponents[0] + exponents[1] * (alpha - sp.Rational(1, 2)))
    for name, expected in zip(along, (sp.Rational(1, 2) - alpha, 1 - 2 * alpha, 1 - alpha), strict=True):
        prove_equal(along[name], expected, f"exponent in B along alpha ({name})")
    told_apart = {a: len({e.subs(alpha, a) for e in along.values()}) for a in (0, sp.Rational(1, 2), 1)}
    prove_equal(sp.Integer(told_apart[1]), sp.Integer(3), "the linear arm separates all three laws")
    prove_equal(sp.Integer(max(told_apart[0], told_apart[sp.Rational(1, 2)])), sp.Integer(2), "the other arms do not")

    # 4. Norm barrier: squared drift plus variance reaches D^2. With k = m D/(w c), drift against diffusion at the barrier,
    #    the slope of log E* in log c runs from -2 (k -> 0, diffusion) to -1 (k -> oo, drift).
    k = sp.Symbol("k", positive=True)
    barrier = next(root for root in sp.solve(sp.Eq((m * c * n) ** 2 + w * c**2 * n, d**2), n) if root.subs({m: 1, w: 1, c: 1, d: 1}) > 0)
    slope = sp.simplify((c * sp.diff(barrier, c) / barrier).subs(c, m * d / (w * k)))
    prove_equal(sp.limit(slope, k, 0), sp.Integer(-2), "norm barrier, diffusion limit")
    prove_equal(sp.limit(slope, k, sp.oo), sp.Integer(-1), "norm barrier, drift limit")

    # 5. With saturation the mean displacement carries phi(B) (theory.saturation): far past B_sat, drift imitates path length.
    b_sat, y = sp.symbols("B_sat y", positive=True)
    saturated = solutions["drift"] / sp.nsimplify(progress.saturation(batch, b_sat), rational=True)
    imitates = sp.simplify((batch * sp.diff(saturated, batch) / saturated).subs(batch, y * b_sat))
    prove_equal(sp.limit(imitates, y, 0), sp.nsimplify(failure.LAWS["drift"][0]), "saturated drift well below B_sat")
    prove_equal(sp.limit(imitates, y, sp.oo), sp.nsimplify(failure.LAWS["constant step"][0]), "saturated drift far past B_sat")
    prove_equal(sp.simplify(c * sp.diff(saturated, c) / saturated), sp.nsimplify(failure.LAWS["constant step"][1]), "saturated drift in c")

    life = lambda label: sp.Symbol(rf"E^{{*}}_{{\mathrm{{{label}}}}}")  # noqa: E731
    return Result(
        name="failure_laws",
        statement="Samples to collapse under three threshold hypotheses; which scaling arm tells them apart.",
        assumptions=(
            r"collapse comes when one accumulated quantity passes a threshold $D$ that depends on neither $B$ nor $c$",
            r"per update: mean displacement $\eta\sqrt B\, m$, variance $\eta^2 w$, length $\eta g$; $m, w, g$ constant along the run",
            r"no clipping; $B$ well below saturation",
        ),
        equations={
            "drift": (life("drift"), solutions["drift"]),
            "diffusion": (life("diffusion"), solutions["diffusion"]),
            "step": (life("step"), solutions["constant step"]),
            "along_drift": (sp.Symbol(r"b_B(\alpha)_{\mathrm{drift}}"), along["drift"]),
            "along_diffusion": (sp.Symbol(r"b_B(\alpha)_{\mathrm{diffusion}}"), along["diffusion"]),
            "along_step": (sp.Symbol(r"b_B(\alpha)_{\mathrm{step}}"), along["constant step"]),
            "barrier": (life("barrier"), barrier),
            "barrier_slope": (sp.Symbol(r"\partial \log E^{*}_{\mathrm{barrier}}/\partial \log c"), slope),
            "saturated": (life("saturated\\ drift"), saturated),
            "saturated_slope": (sp.Symbol(r"\partial \log E^{*}_{\mathrm{saturated}}/\partial \log B\ (y = B/B_{\mathrm{sat}})"), imitates),
        },
        proven="SymPy exponents equal `failure.LAWS`, symbols through `failure.samples_to_failure`; limits of the barrier and of saturation.",
        simulated="tests/test_theory.py (walks in 50 dimensions reach the barrier).",
        carries="TC3: the linear-lr arm separates the laws; test with B well below B_sat.",
    )
