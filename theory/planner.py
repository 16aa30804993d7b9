"""How to spend samples over settings: at most two, when one is enough, and in which order (TC7).

Statement: maximise sum p_j x_j with sum x_j <= N and sum r_j x_j <= D. Two constraints, so a vertex, and thereby an optimum,
uses at most two settings; where both budgets are spent x_1 = (D - N r_2)/(r_1 - r_2). For the local model with an unclipped
L1, L2 or L3 clock the frontier of progress against hazard is concave, so one constant setting is optimal. With rates that
change along the run, setting 1 goes first if p_1 - p_2 falls throughout, and last if it rises. The wall-clock program reduces to least E/X without hazard.
"""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import numpy as np
import sympy as sp

from theory.result import Result, prove, prove_close, prove_equal
from twoclocks import failure, program, progress
from twoclocks.errors import NeverReachedError

Row = list[Fraction]


def vertices(rows: list[Row], limits: Row) -> list[Row]:
    """Every basic feasible solution of rows x + slack = limits, x and slack >= 0, for two rows, in exact arithmetic."""
    n = len(rows[0])
    columns = [[rows[0][i], rows[1][i]] for i in range(n)] + [[Fraction(1), Fraction(0)], [Fraction(0), Fraction(1)]]
    found = []
    for i, j in itertools.combinations(range(n + 2), 2):
        (a, c), (b, d) = columns[i], columns[j]
        determinant = a * d - b * c
        if determinant == 0:
            continue
        first, second = (limits[0] * d - b * limits[1]) / determinant, (a * limits[1] - c * limits[0]) / determinant
        if first >= 0 and second >= 0:
            x = [Fraction(0)] * (n + 2)
            x[i], x[j] = first, second
            found.append(x[:n])
    return found


def certified(best: Row, value: Row, rows: list[Row], limits: Row) -> bool:
    """Whether prices y >= 0 exist with y . limits = value . best and y . column_j >= value_j: then nothing feasible beats best.

    The prices of an optimal vertex solve two of the constraints y_1 >= 0, y_2 >= 0, y . column_j >= value_j with equality.
    """
    total = sum(v * x for v, x in zip(value, best, strict=True))
    n = len(value)
    faces = [([rows[0][i], rows[1][i]], value[i]) for i in range(n)] + [([Fraction(1), Fraction(0)], Fraction(0)), ([Fraction(0), Fraction(1)], Fraction(0))]
    for ((a, b), e), ((c, d), f) in itertools.combinations(faces, 2):
        determinant = a * d - b * c
        if determinant == 0:
            continue
        y = [(e * d - b * f) / determinant, (a * f - e * c) / determinant]
        if min(y) >= 0 and y[0] * limits[0] + y[1] * limits[1] == total and all(y[0] * u + y[1] * v >= w for (u, v), w in faces):
            return True
    return False


def instances(count: int, settings: int) -> list[tuple[Row, Row, Row]]:
    """Random exact (progress, hazard, seconds) per sample; hazards of order one over a budget of N = 1000 samples."""
    draw = random.Random(0)
    fraction = lambda low, high: Fraction(draw.randint(low, high), 97)  # noqa: E731
    return [
        ([fraction(-20, 500) for _ in range(settings)], [fraction(1, 300) / 1000 for _ in range(settings)], [fraction(1, 300) for _ in range(settings)])
        for _ in range(count)
    ]


def prove_programs() -> None:
    """Exact optima, certified by prices, against `program.most_progress` and `program.fewest_seconds`."""
    samples, safety, checked = Fraction(1000), Fraction(8, 10), 0
    for p, r, s in instances(60, 6):
        one = [Fraction(1)] * len(p)
        x = max(vertices([one, r], [samples, safety]), key=lambda v: sum(a * b for a, b in zip(p, v, strict=True)))
        prove(certified(x, p, [one, r], [samples, safety]), "the best vertex is optimal")
        prove(sum(v > 0 for v in x) <= 2, "at most two settings")
        shipped = program.most_progress(*(np.array(v, float) for v in (p, r)), samples=float(samples), safety=float(safety))
        prove_close(shipped, np.array(x, float), "program.most_progress", 1e-8)

        gain = Fraction(1500)
        # minimise s.x with p.x >= gain, r.x <= D: the same enumeration with negated rows
        rows, limits, value = [[-v for v in p], r], [-gain, safety], [-v for v in s]
        feasible = vertices(rows, limits)
        useful = [b / a for a, b in zip(p, r, strict=True) if a > 0]
        prove((min(useful) * gain > safety) == (not feasible), "feasible iff least hazard per progress times the gain is within safety")
        arrays = [np.array(v, float) for v in (p, r, s)]
        if not feasible:
            try:
                program.fewest_seconds(*arrays, gain=float(gain), safety=float(safety))
            except NeverReachedError:
                continue
            prove(False, "program.fewest_seconds refuses what cannot be reached")
        checked += 1
        x = max(feasible, key=lambda v: sum(a * b for a, b in zip(value, v, strict=True)))
        prove(certified(x, value, rows, limits), "the best wall-clock vertex is optimal")
        prove_close(program.fewest_seconds(*arrays, gain=float(gain), safety=float(safety)), np.array(x, float), "program.fewest_seconds", 1e-8)
        # Without hazard: one setting, that of least T = E/X with E = gain/p samples and X = 1/s samples per second
        free = program.fewest_seconds(arrays[0], np.zeros(len(p)), arrays[2], gain=float(gain), safety=float(safety))
        times = [float(gain / a * c) if a > 0 else np.inf for a, c in zip(p, s, strict=True)]
        prove_close([free @ arrays[2], float((free > 0).sum())], [min(times), 1.0], "program.fewest_seconds without hazard", 1e-8)
    prove(checked >= 10, "enough feasible wall-clock instances")


def derive() -> Result:
    """Derive, prove `program.switch_samples`, `most_progress` and `fewest_seconds`, and return the result.

    Raises
    ------
    ProofError
        If a shipped function or a claim of the statement does not follow.
    """
    n, safety, r1, r2, x1, x2 = sp.symbols("N D r_1 r_2 x_1 x_2", positive=True)
    batch, a, h0, h1, r, kappa, y = sp.symbols("B a h_0 h_1 r kappa y", positive=True)

    # 1. Both budgets spent.
    spent = sp.solve([x1 + x2 - n, r1 * x1 + r2 * x2 - safety], [x1, x2])
    prove_equal(program.switch_samples(r1, r2, samples=n, safety=safety), spent[x1], "program.switch_samples")
    prove_equal(program.switch_samples(r2, r1, samples=n, safety=safety), spent[x2], "program.switch_samples of the other")
    prove_equal(spent[x1].subs(safety, r1 * n), n, "all at setting 1 when D = r_1 N")
    prove_equal(spent[x1].subs(safety, r2 * n), sp.Integer(0), "all at setting 2 when D = r_2 N")

    # 2. Optima use at most two settings, in exact arithmetic; the shipped solvers find them.
    prove_programs()

    # 3. Concave frontier: hazard r = 1/E* from the shipped laws fixes c; progress of the local model is then concave in r.
    frontier = {}
    c = sp.Symbol("c", positive=True)
    for name in ("drift", "diffusion"):
        b_batch, b_drift = (sp.nsimplify(x) for x in failure.LAWS[name])
        life = failure.samples_to_failure(batch, c, samples=1 / kappa, batch0=1, drift_rate0=1, b_batch=b_batch, b_drift=b_drift)
        (at,) = sp.solve(sp.Eq(r, 1 / life), c)
        frontier[name] = sp.expand(progress.per_sample(batch, at, a=a, h0=h0, h1=h1))
        prove(sp.simplify(-sp.diff(frontier[name], r, 2)).is_positive, f"the frontier of the {name} law is concave at every batch")
        prove(sp.simplify(-sp.diff(frontier[name], batch)).is_positive, f"and highest at the smallest batch ({name})")
    #    L3 mixes B into r: with y = c, B = (kappa y/r)^2 and p is jointly concave in (y, r), so its maximum over y is concave.
    b_batch, b_drift = (sp.nsimplify(x) for x in failure.LAWS["constant step"])
    life = failure.samples_to_failure(batch, y, samples=1 / kappa, batch0=1, drift_rate0=1, b_batch=b_batch, b_drift=b_drift)
    (at,) = sp.solve(sp.Eq(r, 1 / life), batch)
    steps = sp.expand(progress.per_sample(at, y, a=a, h0=h0, h1=h1))
    hessian = sp.hessian(steps, (y, r))
    prove(sp.simplify(-hessian[0, 0]).is_positive, "the constant-step frontier is concave in y")
    prove(sp.simplify(hessian.det()).is_positive, "and jointly concave in (y, r)")

    # 4. Then one setting suffices (Jensen, with idling as the setting p = r = 0): a fine grid's best plan gains nothing over
    #    the best constant. The converse needs a chord above the frontier, as where a clip cuts hazard at large c.
    rates, fine = np.linspace(1e-3, 2.0, 800), np.linspace(1e-3, 2.0, 400_001)
    model = {"a": 1.0, "h0": 0.4, "h1": 1e-3}
    for name, power in (("drift", 1), ("diffusion", 2)):
        p, hazard = progress.per_sample(32.0, rates, **model), rates**power / 400.0
        vertex = float(p @ program.most_progress(p, hazard, samples=1000.0, safety=0.8))
        constant = float((progress.per_sample(32.0, fine, **model) * np.minimum(1000.0, 0.8 / (fine**power / 400.0))).max())
        prove(vertex <= constant * (1 + 1e-4), f"one constant setting is optimal for the {name} law")
    p, hazard = np.array([1.0, 2.0, 2.6]), np.array([0.5, 1.5, 1.6]) / 1000  # the middle setting lies below the chord
    x = program.most_progress(p, hazard, samples=1000.0, safety=0.8)
    constants = p * np.minimum(1000.0, 0.8 / hazard)
    prove(bool((x > 0).tolist() == [True, False, True] and p @ x > 1.05 * constants.max()), "two stages win where the frontier is not concave")
    prove_close(x[2], program.switch_samples(hazard[2], hazard[0], samples=1000.0, safety=0.8), "the vertex is the switch point", 1e-8)

    # 5. Order under changing rates: P_j are antiderivatives of p_j, F = P_1 - P_2. Stage 1 first gains
    #    A(x1, x2) = F(x1) - F(0) - F(x1 + x2) + F(x2) more than stage 2 first; A = 0 on both axes and its mixed derivative is
    #    -(p_1 - p_2)' at x1 + x2, so A is minus the integral of that slope over the rectangle: positive if p_1 - p_2 falls
    #    throughout, negative if it rises throughout.
    t = sp.Symbol("t", positive=True)
    p1, p2, f = (sp.Function(name) for name in ("P1", "P2", "F"))
    first = p1(x1) - p1(0) + p2(x1 + x2) - p2(x1)
    second = p2(x2) - p2(0) + p1(x1 + x2) - p1(x2)
    advantage = f(x1) - f(0) - f(x1 + x2) + f(x2)
    prove_equal((first - second).expand(), advantage.replace(f, lambda u: p1(u) - p2(u)).expand(), "advantage of stage 1 first")
    for none in (x1, x2):
        prove_equal(advantage.subs(none, 0), sp.Integer(0), "one stage has no order")
    mixed = sp.diff(advantage, x1, x2).doit()
    prove_equal(mixed, -sp.diff(f(t), t, 2).subs(t, x1 + x2).doit(), "mixed derivative of the advantage")
    sloped = advantage.replace(f, lambda u: kappa * u - y * u**2 / 2)  # p_1 - p_2 = kappa - y t falls
    prove(sp.expand(sloped.doit()).is_positive, "stage 1 first where p_1 - p_2 falls")

    named = sp.Symbol
    return Result(
        name="planner",
        statement="An optimal spend of samples uses at most two settings; one for the local model with an unclipped clock; order and wall clock.",
        assumptions=(
            r"settings with progress $p_j$, hazard $r_j = 1/E^{*}_j$ and seconds $s_j$ per sample; damage adds up linearly to $D \le 1$",
            r"rates constant along the run; for the order of stages functions of the sample count alone, $F' = p_1 - p_2$",
            r"$r = \kappa c$ (L1), $\kappa c^2$ (L2), $\kappa c/\sqrt B$ (L3); local model with $a, h_0, h_1 > 0$",
        ),
        equations={
            "switch": (x1, spent[x1]),
            "frontier_drift": (named(r"p_{\mathrm{L1}}(r)"), frontier["drift"]),
            "frontier_diffusion": (named(r"p_{\mathrm{L2}}(r)"), frontier["diffusion"]),
            "frontier_step": (named(r"p_{\mathrm{L3}}(y, r)"), steps),
            "step_hessian": (named(r"\det\nabla^2 p_{\mathrm{L3}}"), sp.factor(hessian.det())),
            "order": (named("A(x_1, x_2)"), advantage),
            "order_mixed": (named(r"\partial^2 A/\partial x_1\partial x_2\,|_{x_1 + x_2 = t}"), -sp.diff(f(t), t, 2)),
        },
        proven="60 random instances in exact fractions, certified by dual prices, equal `program.most_progress`, `fewest_seconds`; concavity by SymPy.",
        simulated="tests/test_planner.py; analysis figure theory_planner.",
        carries="TC7.",
    )
