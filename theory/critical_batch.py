"""Critical batch of the local model (TC2): where curvature takes a given fraction of the drift, and what follows.

Statement: B_crit(f; c) + h0/h1 = 2 f a/(c h1). It falls with the learning rate, as 1/c only in the limit of small c;
relative to the small-batch limit B_rel(f; c) = f (2a/c - h0)/h1. The best learning rate at a batch peaks at h0/h1.
"""

from __future__ import annotations

import sympy as sp

from theory.result import Result, prove_equal
from twoclocks import progress


def derive() -> Result:
    """Derive, prove the shipped closed forms, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    batch, c, f, a, h0, h1 = sp.symbols("B c f a h_0 h_1", positive=True)
    model = {"a": a, "h0": h0, "h1": h1}
    p = progress.per_sample(batch, c, **model)  # proven in theory.local_model
    drift, loss = c * a, c * a - p

    # 1. Loss equal to a fraction f of the drift.
    (critical,) = sp.solve(sp.Eq(loss, f * drift), batch)
    prove_equal(progress.critical_batch(f, c, **model), critical, "progress.critical_batch")

    # 2. Its slope in log c is -1 only as c goes to 0: with u = c h0/(2 f a) < 1 it is -1/(1 - u).
    u = sp.Symbol("u", positive=True)
    slope = sp.simplify((c * sp.diff(critical, c) / critical).subs(c, 2 * f * a * u / h0))
    prove_equal(slope, -1 / (1 - u), "log-slope of B_crit in c")

    # 3. Loss of a fraction f of the small-batch limit p(0, c).
    small = p.subs(batch, 0)
    (relative,) = sp.solve(sp.Eq(p, (1 - f) * small), batch)
    prove_equal(progress.relative_critical_batch(f, c, **model), relative, "progress.relative_critical_batch")

    # 4. Where nothing is left: f = 1 in either definition.
    (zero,) = sp.solve(sp.Eq(p, 0), batch)
    prove_equal(zero, relative.subs(f, 1), "zero-progress batch is B_rel(1; c)")
    prove_equal(zero, critical.subs(f, 1), "zero-progress batch is B_crit(1; c)")

    # 5. Best drift rate at a batch, and the best learning rate with its peak.
    (best,) = sp.solve(sp.diff(p, c), c)
    prove_equal(progress.best_drift_rate(batch, **model), best, "progress.best_drift_rate")
    lr = sp.sqrt(batch) * best
    (peak,) = sp.solve(sp.diff(lr, batch), batch)
    prove_equal(peak, h0 / h1, "best learning rate peaks at h0/h1")

    named = sp.Symbol
    return Result(
        name="critical_batch",
        statement="Batch at which curvature takes a fraction f of the drift, and the best learning rate at a batch.",
        assumptions=(r"the local model of local\_model with $a, h_0, h_1 > 0$", r"$0 < f < 1$; $u = c h_0/(2 f a) < 1$"),
        equations={
            "critical": (named(r"B_{\mathrm{crit}}"), critical),
            "slope": (named(r"\partial \log B_{\mathrm{crit}}/\partial \log c"), slope),
            "relative": (named(r"B_{\mathrm{rel}}"), relative),
            "zero": (named("B_{p=0}"), zero),
            "best_drift": (named("c^{*}"), best),
            "best_lr": (named(r"\eta^{*}"), lr),
            "peak": (named(r"\arg\max_B \eta^{*}"), peak),
        },
        proven="Solved by SymPy; symbols through `progress.critical_batch`, `relative_critical_batch`, `best_drift_rate`.",
        simulated="tests/test_progress.py; analysis figure theory_progress.",
        carries="TC2.",
    )
