"""A whole run on a fixed quadratic, not one step: moments, stability, noise floor, samples to target (TC1, TC2).

Statement: in eigen-direction i of H/sigma the mean shrinks by 1 - x_i an update, x = c B K lambda, and the covariance obeys
C -> rho C + q; a run is stable for 0 < x < 2 and settles at the noise floor c/(2 K lambda)/(1 - x/2). Samples to shrink a mean
go as -x/ln|1 - x| = 1 - x/2 + ...: fewer than those of a vanishing batch until x = 1 + W(1/e) = 1.278..., opposite in sign to
the 1 + x/2 of one step held against a frozen gradient. A measured gap in samples is thus no evidence for h1 by itself.
"""

from __future__ import annotations

import numpy as np
import sympy as sp

from theory.local_model import normalised_moment, sign_moment
from theory.result import Result, prove, prove_close, prove_equal
from twoclocks import progress, trajectory


def derive() -> Result:
    """Derive, prove the closed forms of `twoclocks.trajectory`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    batch, c, lam, gain, theta, fraction = sp.symbols("B c lambda K theta q", positive=True)
    x, y, k, start, noise = sp.symbols("x y k C_0 Q", positive=True)

    # 1. One update: theta -> theta - eta (K sqrt(B) lambda theta) + eta xi, so the mean shrinks by x = eta sqrt(B) K lambda.
    contraction = (c * sp.sqrt(batch)) * gain * sp.sqrt(batch) * lam
    prove_equal(trajectory.contraction(batch, c, lam, gain), contraction, "trajectory.contraction")

    #    K is the leading order of the mean step (theory.local_model).
    _, leading, size, ratio = sign_moment()
    _, leading_adam = normalised_moment(size, ratio)
    steps = [form / (ratio * sp.sqrt(size)) for form in (leading, leading_adam)]
    shipped = [trajectory.MEAN_STEP[name] for name in ("sign", "normalised")]
    prove_close(shipped, [float(sp.simplify(step)) for step in steps], "trajectory.MEAN_STEP")

    # 2. Mean and covariance, by induction: right at k = 0, and k + 1 follows from k by the recursion.
    prove_equal(trajectory.mean_after(0, x, theta), theta, "trajectory.mean_after at 0")
    prove_equal(trajectory.mean_after(k + 1, x, theta), (1 - x) * trajectory.mean_after(k, x, theta), "trajectory.mean_after, step")
    rho = (1 - x) * (1 - y)
    covariance = rho**k * start + noise * (1 - rho**k) / (1 - rho)
    prove_equal(covariance.subs(k, 0), start, "covariance at 0")
    prove_equal(covariance.subs(k, k + 1), rho * covariance + noise, "covariance, step")
    prove_equal(trajectory.covariance_after(k, x, y, start, noise), covariance, "trajectory.covariance_after")

    # 3. Stable where |1 - x| < 1.
    real = sp.Symbol("x", real=True)
    prove(sp.solveset(sp.Abs(1 - real) < 1, real, sp.S.Reals) == sp.Interval.open(0, 2), "stable for 0 < x < 2")

    # 4. Noise floor: the fixed point V = (1 - x)^2 V + eta^2, eta^2 = c^2 B.
    v = sp.Symbol("V")
    (fixed,) = sp.solve(sp.Eq(v, (1 - x) ** 2 * v + c**2 * batch), v)
    floor = c / (2 * gain * lam) / (1 - contraction / 2)
    prove_equal(fixed.subs(x, contraction), floor, "fixed point of the variance")
    prove_equal(trajectory.noise_floor(batch, c, lam, gain), floor, "trajectory.noise_floor")

    # 5. Samples N = k B to shrink a mean to a fraction q, (1 - x)^(N/B) = q, against a vanishing batch.
    n = batch * sp.log(fraction) / sp.log(1 - contraction)
    prove_equal(((1 - contraction) ** (n / batch)).rewrite(sp.exp).simplify(), fraction, "samples to shrink a mean")
    vanishing = sp.limit(n, batch, 0)
    relative = -x / sp.log(1 - x)
    prove_equal((n / vanishing).subs(lam, x / (c * batch * gain)), relative, "E(B)/E(0)")
    expansion = sp.series(relative, x, 0, 3).removeO()
    prove_equal(expansion, 1 - x / 2 - x**2 / 12, "expansion of E(B)/E(0)")
    grid = np.concatenate([np.linspace(0.01, 0.99, 50), np.linspace(1.01, 1.99, 50)])
    prove_close(trajectory.relative_samples(grid), -grid / np.log(np.abs(1 - grid)), "trajectory.relative_samples")

    # 6. Parity for x > 1, where the mean overshoots and |1 - x| counts: x + ln(x - 1) = 0, increasing, so one root. With
    #    w exp(w) = 1/e, ln w = -1 - w and x = 1 + w solves it.
    w = sp.Symbol("w", positive=True)
    prove(sp.diff(x + sp.log(x - 1), x).subs(x, 1 + w).simplify().is_positive, "the parity equation increases")
    prove_equal((x + sp.log(x - 1)).subs(x, 1 + w).subs(sp.log(w), -1 - w), sp.Integer(0), "parity point")
    parity = 1 + sp.LambertW(sp.exp(-1))
    prove_close(trajectory.PARITY, float(parity), "trajectory.PARITY")

    # 7. One step against a frozen gradient, same coherent direction: a = K lambda^2 theta^2/sigma, h1 = K^2 s^2 lambda with
    #    s = lambda theta/sigma, h0 = 0, sigma = 1. The local model has the other sign.
    local = {"a": gain * lam**2 * theta**2, "h0": sp.Integer(0), "h1": gain**2 * (lam * theta) ** 2 * lam}
    one_step = sp.simplify(c * local["a"] / progress.per_sample(batch, c, **local)).subs(lam, x / (c * batch * gain))
    prove_equal(one_step, 1 / (1 - x / 2), "the local model's E(B)/E(0)")
    first = [sp.series(form, x, 0, 2).removeO().coeff(x, 1) for form in (one_step, relative)]
    prove_equal(first[0] + first[1], sp.Integer(0), "opposite first orders")
    prove(sp.sympify(first[0]).is_positive, "one step loses, the run gains")

    # 8. General H and unequal noise: R theta are coordinates in which the update's mean map is diagonal.
    rng = np.random.default_rng(0)
    for d in (2, 5):
        root = rng.standard_normal((d, d))
        world = trajectory.Quadratic(root @ root.T, np.exp(rng.standard_normal(d)), np.ones(d))
        curvature, into = world.modes()
        prove_close(into @ (world.hessian / world.noise[:, None]) @ np.linalg.inv(into), np.diag(curvature), "Quadratic.modes")
        mean, cov, lr, size = world.start, np.zeros((d, d)), 1e-3 * 4.0, 16.0
        step = np.eye(d) - lr * 4.0 * world.hessian / world.noise[:, None]
        for _ in range(7):
            mean, cov = step @ mean, step @ cov @ step.T + lr**2 * np.eye(d)
        shipped = world.moments([7 * size], size, 1e-3)
        prove_close(shipped[0][0], mean, "Quadratic.moments, mean")
        prove_close(shipped[1][0], cov, "Quadratic.moments, covariance", 1e-9)

    # 9. Expected loss of a direction that starts above its floor falls in k (0 < x < 1), so does any sum of them: the root of
    #    samples-to-target is unique. For one direction it is in closed form.
    above, shrink, level = sp.symbols("A r L", positive=True)  # theta^2 - floor, -ln rho, floor
    falling = lam / 2 * (above * sp.exp(-shrink * k) + level)
    prove(sp.diff(falling, k).is_negative, "expected loss falls with updates")
    target = sp.Symbol("ell", positive=True)
    updates = sp.log(above / (2 * target / lam - level)) / shrink
    prove_equal(falling.subs(k, updates), target, "samples to a loss, one direction")
    for drift_rate, size in ((1e-3, 16.0), (4e-3, 16.0), (1e-3, 256.0)):
        world = trajectory.Quadratic(np.array([[0.5]]), np.ones(1), np.array([2.0]))
        bottom = trajectory.noise_floor(size, drift_rate, 0.5, 1.0)
        decay = -2 * np.log(1 - trajectory.contraction(size, drift_rate, 0.5, 1.0))
        closed = size * np.log((4 - bottom) / (2 * 0.1 / 0.5 - bottom)) / decay
        prove_close(world.samples_to_loss(0.1, size, drift_rate) / closed, 1.0, "Quadratic.samples_to_loss")

    named = sp.Symbol
    return Result(
        name="trajectory",
        statement="Moments, stability, noise floor and samples to target of a run on a quadratic; to first order a larger batch saves samples.",
        assumptions=(
            r"$J = -\theta^\top H\theta/2$ fixed along the run; per-sample gradients $\mathcal N(-H\theta, \mathrm{diag}\,\sigma^2)$",
            r"update $\eta v$ with $E[v] = K\sqrt B\,E[\bar g]/\sigma$ and unit variance: exact for $v = \sqrt B\,\bar g/\sigma$, leading order for signs",
            r"$\lambda$: eigenvalue of $H/\sigma$; floor and $q$ of a coordinate with unit noise (in eigen-coordinates $R\theta$ times $(RR^\top)_{ii}$)",
            r"$E(B)/E(0)$: a mean, without the noise floor, at real-valued updates; the one-step rival has $h_0 = 0$",
        ),
        equations={
            "x": (x, contraction),
            "mean": (named("m_k"), (1 - x) ** k * theta),
            "covariance": (named("C_k"), covariance),
            "floor": (named(r"V_\infty"), floor),
            "relative": (named("E(B)/E(0)"), relative),
            "expansion": (named(r"E(B)/E(0)\ \mathrm{(small\ }x)"), expansion),
            "parity": (named(r"x_{\mathrm{parity}}"), parity),
            "one_step": (named(r"E(B)/E(0)\ \mathrm{(one\ step)}"), one_step),
            "updates": (named(r"k(\ell)"), updates),
        },
        proven="Induction over updates and SymPy symbols through `trajectory.*`; `Quadratic` against the literal matrix recursion to 1e-9.",
        simulated="tests/test_trajectory.py (3 standard errors over B, c and S); analysis figure theory_trajectory.",
        carries="TC1 (b) and TC2: on a quadratic a gap in samples needs x > 1.278, or something outside this model.",
    )
