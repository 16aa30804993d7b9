"""Saturation: a mean step cannot exceed the step (TC1, TC2).

Statement: with s = mu/sigma the mean step is K s sqrt(B) phi(B), phi = (1 + B/B_sat)^(-1/2), B_sat = 1/(K s)^2: exactly for
Adam with a slow second moment, and at most 11.7% below (on a dense grid nowhere above) the error function of a sign update. Then
p = c a phi - c^2/2 (h0 + B h1 phi^2): saturation lowers the intercept of p/c in c, curvature steepens its slope, and the
curvature loss is bounded by c^2 (h0 + h1 B_sat)/2.
"""

from __future__ import annotations

import numpy as np
import sympy as sp
from scipy import special

from theory.local_model import normalised_moment
from theory.result import Result, prove, prove_close, prove_equal
from twoclocks import progress

BOUND = sp.Rational(117, 1000)


def worst_deficit(low: float = 1e-2, high: float = 10.0, points: int = 60_000) -> float:
    """Upper bound of 1 - r over all u > 0, r = v/sqrt(1 + v^2)/erf(u), v = 2u/sqrt(pi).

    On a log grid: both logarithms in log r have slopes between 0 and 1 in log u (erf is concave, so u erf'(u) <= erf(u)),
    hence |d log r/d log u| <= 1 and half a grid step bounds what lies between points. Below the grid r >= 1/sqrt(1 + v^2)
    because erf(u) <= v; above it r >= v/sqrt(1 + v^2) because erf(u) <= 1; both are within the bound at the grid's ends.
    """
    log_u = np.linspace(np.log(low), np.log(high), points)
    u = np.exp(log_u)
    v = 2 * u / np.sqrt(np.pi)
    ratio = v / np.sqrt(1 + v**2) / special.erf(u)
    prove(bool(ratio.max() <= 1), "the approximation is nowhere on the grid above the error function")
    ends = (1 - 1 / np.sqrt(1 + v[0] ** 2), 1 - v[-1] / np.sqrt(1 + v[-1] ** 2))
    return float(max(1 - ratio.min() * np.exp(-(log_u[1] - log_u[0]) / 2), *ends))


def derive() -> Result:
    """Derive, prove `progress.saturation`, `saturation_batch` and `saturated_per_sample`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function, the error bound, or a claim of the statement does not follow.
    """
    batch, s, c, gain, a, h0, h1, b_sat = sp.symbols("B s c K a h_0 h_1 B_sat", positive=True)

    # 1. Slow Adam: E[v] = s sqrt(B) phi with B_sat = 1/s^2, exactly.
    exact_adam, _ = normalised_moment(batch, s)
    phi = 1 / sp.sqrt(1 + batch / b_sat)
    prove_equal(s * sp.sqrt(batch) * phi.subs(b_sat, 1 / s**2), exact_adam, "saturation of slow Adam")

    # 2. Sign updates: s/sqrt(pi/(2B) + s^2) has the slope of erf(s sqrt(B/2)) at small B and its limit 1 at large B, and is
    #    K s sqrt(B) phi with K = sqrt(2/pi), B_sat = 1/(K s)^2 = pi/(2 s^2).
    approximation = s / sp.sqrt(sp.pi / (2 * batch) + s**2)
    sign_gain = sp.sqrt(2 / sp.pi)
    prove_equal(sign_gain * s * sp.sqrt(batch) * phi.subs(b_sat, sp.pi / (2 * s**2)), approximation, "saturation of sign updates")
    exact = sp.erf(s * sp.sqrt(batch / 2))
    prove_equal(sp.limit(exact / approximation, batch, 0), sp.Integer(1), "small batches")
    prove_equal(sp.limit(approximation, batch, sp.oo), sp.Integer(1), "large batches")
    deficit = worst_deficit()
    prove(bool(deficit <= BOUND), f"the approximation is at most {float(BOUND):.1%} low, found {deficit:.3%}")

    # 3. Into the local model with a common s: every mean step carries phi, every product of two carries phi^2.
    saturated = c * a * phi - c**2 / 2 * (h0 + batch * h1 * phi**2)

    # 4. p/c is a line in c. Its intercept knows saturation alone, its slope curvature: without saturation the intercept is
    #    the same at every B; without coherent curvature the slope is.
    line = sp.Poly(sp.expand(saturated / c), c)
    slope, intercept = line.all_coeffs()
    prove_equal(intercept, a * phi, "intercept of p/c")
    prove_equal(slope, -(h0 + batch * h1 * phi**2) / 2, "slope of p/c")
    prove_equal(sp.diff(sp.limit(intercept, b_sat, sp.oo), batch), sp.Integer(0), "intercept without saturation")
    prove_equal(sp.diff(slope.subs(h1, 0), batch), sp.Integer(0), "slope without coherent curvature")

    # 5. B phi^2 rises to B_sat: the curvature loss is bounded.
    effective = sp.simplify(batch * phi**2)
    prove(sp.simplify(sp.diff(effective, batch)).is_positive, "B phi^2 rises with B")
    bound = sp.limit(c**2 / 2 * (h0 + batch * h1 * phi**2), batch, sp.oo)
    prove_equal(bound, c**2 * (h0 + h1 * b_sat) / 2, "bound of the curvature loss")

    # 6. The library ships exactly these; the exact sign moment on a grid, to the stated bound.
    prove_equal(progress.saturation(batch, b_sat), phi, "progress.saturation")
    prove_equal(progress.saturation_batch(s, gain), 1 / (gain * s) ** 2, "progress.saturation_batch")
    prove_equal(progress.saturation_batch(s, sign_gain), sp.pi / (2 * s**2), "progress.saturation_batch of sign updates")
    prove_equal(progress.saturated_per_sample(batch, c, a=a, h0=h0, h1=h1, saturation_batch=b_sat), saturated, "progress.saturated_per_sample")
    b, ratio = np.meshgrid(np.geomspace(1, 1e6, 60), np.geomspace(1e-3, 1, 30))
    k = float(sign_gain)
    shipped = k * ratio * np.sqrt(b) * progress.saturation(b, progress.saturation_batch(ratio, k))
    prove_close(shipped, special.erf(ratio * np.sqrt(b / 2)), "progress.saturation against the error function", float(BOUND))

    named = sp.Symbol
    return Result(
        name="saturation",
        statement="The mean step saturates at B_sat; saturation acts on the intercept of p/c in c, curvature on its slope, and it bounds the curvature loss.",
        assumptions=(
            r"the local model without the noise-dominated limit; one common $s = \mu_i/\sigma_i$ (else $a$ and $h_1$ saturate apart)",
            r"sign updates: the error function replaced by $K s\sqrt B\,\phi$, at most 11.7\% low (shown on a grid with a Lipschitz bound)",
        ),
        equations={
            "phi": (sp.Function("phi")(batch), phi),
            "b_sat": (b_sat, 1 / (gain * s) ** 2),
            "b_sat_sign": (named(r"B_{\mathrm{sat, sign}}"), sp.pi / (2 * s**2)),
            "b_sat_adam": (named(r"B_{\mathrm{sat, Adam}}"), 1 / s**2),
            "sample": (sp.Function("p")(batch, c), saturated),
            "bound": (named(r"\max_B\,\mathrm{curvature\ loss}"), bound),
        },
        proven="SymPy symbols through `progress.saturation`, `saturation_batch`, `saturated_per_sample`; error bound by a grid and a Lipschitz argument.",
        simulated="tests/test_progress.py (sign updates at batches up to 16 B_sat).",
        carries="TC1 and TC2: with three drift rates a batch, saturation and curvature are told apart.",
    )
