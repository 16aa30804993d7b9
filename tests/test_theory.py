from pathlib import Path

import pytest
import sympy as sp

from theory import critical_batch, failure_laws, local_model
from theory.result import ProofError, prove_equal
from twoclocks import failure, progress

ROOT = Path(__file__).parents[1]
DERIVED = ROOT / "theory/derived"


@pytest.fixture(scope="module")
def results():
    return [local_model.derive(), critical_batch.derive(), failure_laws.derive()]


def test_derived_files_are_what_the_derivations_give(results, tmp_path):
    for result in results:
        result.write(tmp_path)
    made = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert made == {p.name: p.read_text() for p in DERIVED.iterdir()}


def test_derived_json_holds_no_floats():
    import json

    for path in DERIVED.glob("*.json"):
        for left, right in json.loads(path.read_text())["equations"].values():
            assert "." not in right, (path.name, left)


@pytest.mark.parametrize(
    ("function", "wrong", "module"),
    [
        ("per_sample", lambda batch, c, *, a, h0, h1: c * a - c**2 * (h0 + batch * h1), local_model),
        ("per_update", lambda batch, lr, root, *, a, h0, h1: lr * root * a, local_model),
        ("critical_batch", lambda f, c, *, a, h0, h1: 2 * f * a / (c * h1), critical_batch),
        ("relative_critical_batch", lambda f, c, *, a, h0, h1: (2 * f * a / c - h0) / h1, critical_batch),
        ("best_drift_rate", lambda batch, *, a, h0, h1: a / (h0 + 2 * batch * h1), critical_batch),
    ],
)
def test_a_wrong_shipped_function_does_not_pass(monkeypatch, function, wrong, module):
    monkeypatch.setattr(progress, function, wrong)
    with pytest.raises(ProofError, match=function):
        module.derive()


@pytest.mark.parametrize(
    ("law", "wrong"),
    [("drift", (0.0, -2.0)), ("drift", (0.5, -1.0)), ("diffusion", (0.0, -1.0)), ("constant step", (-0.5, -1.0)), ("constant step", (0.0, -1.0))],
)
def test_a_wrong_exponent_does_not_pass(monkeypatch, law, wrong):
    monkeypatch.setitem(failure.LAWS, law, wrong)
    with pytest.raises(ProofError, match=law):
        failure_laws.derive()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda b, c, *, samples, batch0, drift_rate0, b_batch, b_drift: samples * (b / batch0) ** b_batch * (c / drift_rate0),
        lambda b, c, *, samples, batch0, drift_rate0, b_batch, b_drift: samples * (batch0 / b) ** b_batch * (c / drift_rate0) ** b_drift,
        lambda b, c, *, samples, batch0, drift_rate0, b_batch, b_drift: 2 * samples * (b / batch0) ** b_batch * (c / drift_rate0) ** b_drift,
    ],
)
def test_a_wrong_law_function_does_not_pass(monkeypatch, wrong):
    monkeypatch.setattr(failure, "samples_to_failure", wrong)
    with pytest.raises(ProofError, match="samples_to_failure"):
        failure_laws.derive()


def test_drifted_walks_hit_the_barrier_where_the_law_says():
    """Simulated updates with mean m and variance w in 50 dimensions: median samples to |displacement| = D."""
    import numpy as np

    rng, dim, threshold = np.random.default_rng(0), 50, 1.0
    barrier = failure_laws.derive().equations["barrier"][1]
    names = {symbol.name: symbol for symbol in barrier.free_symbols}
    for c, batch in ((2e-3, 16), (4e-3, 16), (2e-3, 64)):
        eta, m, w = c * batch**0.5, 0.4, float(dim)
        predicted = float(barrier.subs({names["c"]: c, names["m"]: m, names["w"]: w, names["D"]: threshold}))
        steps = int(3 * predicted / batch)
        drift = np.zeros(dim)
        drift[0] = eta * batch**0.5 * m
        walks = np.cumsum(drift + eta * rng.standard_normal((200, steps, dim)), axis=1)
        hit = (np.linalg.norm(walks, axis=2) >= threshold).argmax(axis=1) * batch
        # First passage comes a little before the mean square reaches the barrier
        assert np.median(hit) == pytest.approx(predicted, rel=0.15), (c, batch)


def test_limits_and_dimensions():
    b, c, f, a, h0, h1, k = sp.symbols("B c f a h0 h1 k", positive=True)
    critical = progress.critical_batch(f, c, a=a, h0=h0, h1=h1)
    relative = progress.relative_critical_batch(f, c, a=a, h0=h0, h1=h1)
    assert sp.limit(critical * c, c, 0) == 2 * f * a / h1
    assert sp.simplify(relative.subs(h0, 0) - critical.subs(h0, 0)) == 0
    # Units: scale c by k and the model's coefficients with it, and neither batch nor progress per sample moves
    scaled = {"a": a / k, "h0": h0 / k**2, "h1": h1 / k**2}
    assert sp.simplify(progress.critical_batch(f, k * c, **scaled) - critical) == 0
    assert sp.simplify(progress.per_sample(b, k * c, **scaled) - progress.per_sample(b, c, a=a, h0=h0, h1=h1)) == 0


def test_sign_moment_agrees_with_sampling():
    import numpy as np

    exact, leading, batch, s = local_model.sign_moment()
    rng, values = np.random.default_rng(0), {batch: 64, s: 0.05}
    drawn = np.sign(0.05 + rng.standard_normal(2_000_000) / 8).mean()
    assert float(exact.subs(values)) == pytest.approx(drawn, abs=3e-3)
    # Leading order errs by less than (s sqrt B)^2/6, the next term of the series
    assert float(leading.subs(values) / exact.subs(values)) - 1 == pytest.approx((0.05 * 8) ** 2 / 6, rel=0.1)


def test_prove_equal_shows_the_difference():
    x = sp.Symbol("x")
    with pytest.raises(ProofError, match="f: shipped minus derived is x"):
        prove_equal(2 * x, x, "f")
