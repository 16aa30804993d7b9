from pathlib import Path

import pytest
import sympy as sp

from theory import critical_batch, local_model
from theory.result import ProofError, prove_equal
from twoclocks import progress

ROOT = Path(__file__).parents[1]
DERIVED = ROOT / "theory/derived"


@pytest.fixture(scope="module")
def results():
    return [local_model.derive(), critical_batch.derive()]


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
