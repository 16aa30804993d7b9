import json
import re
from pathlib import Path

import pytest
import sympy as sp

from theory import critical_batch, failure_laws, local_model
from theory.__main__ import MODULES, index, main
from theory.result import ProofError, prove, prove_close, prove_equal
from twoclocks import progress

ROOT = Path(__file__).parents[1]
DERIVED = ROOT / "theory/derived"


@pytest.fixture(scope="module")
def results():
    return [module.derive() for module in MODULES]


def test_derived_files_and_the_index_are_what_the_derivations_give(results, tmp_path):
    for result in results:
        result.write(tmp_path)
    made = {p.name: p.read_text() for p in tmp_path.iterdir()}
    assert made == {p.name: p.read_text() for p in DERIVED.iterdir()}
    assert index(results) == (ROOT / "theory/README.md").read_text()


def test_every_result_says_how_it_was_proven_simulated_and_what_it_carries(results):
    for result in results:
        assert result.statement and result.proven and result.carries and result.equations
        for path in re.findall(r"tests/\w+\.py", result.simulated):
            assert (ROOT / path).exists(), path
        for figure in re.findall(r"figure (\w+)", result.simulated):
            assert (ROOT / f"analysis/figures/{figure}.csv").exists(), figure


def test_docs_hold_no_formula_but_generated_ones():
    """Mathematics in a document comes from theory/README.md, which is generated."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        assert not re.search(r"\$[^$]+\$|```math|\\\(|\\frac", path.read_text()), path


def test_derived_json_holds_no_floats():
    for path in DERIVED.glob("*.json"):
        for left, right in json.loads(path.read_text())["equations"].values():
            assert not re.search(r"\d\.\d", right), (path.name, left)


def test_a_failed_proof_is_named_and_nothing_is_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(progress, "critical_batch", lambda f, c, *, a, h0, h1: f * a / (c * h1))
    monkeypatch.setattr("theory.__main__.MODULES", (local_model, critical_batch, failure_laws))
    monkeypatch.setattr("sys.argv", ["theory", "--out", str(tmp_path / "derived")])
    assert main() == 1
    told = capsys.readouterr()
    assert "FAILED critical_batch: progress.critical_batch" in told.err
    assert "1 of 3 results are not proven: critical_batch" in told.err
    assert [line.split(":")[0] for line in told.out.splitlines()] == ["proved local_model", "proved failure_laws"]
    assert not list(tmp_path.iterdir())


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


def test_proofs_show_what_differs():
    x = sp.Symbol("x")
    with pytest.raises(ProofError, match="f: shipped minus derived is x"):
        prove_equal(2 * x, x, "f")
    with pytest.raises(ProofError, match=r"g: shipped and derived differ by 0\.000999"):
        prove_close([1.0, 2.0], [1.0, 2.002], "g")
    with pytest.raises(ProofError, match="differ by nan"):
        prove_close([float("nan")], [1.0], "g")
    with pytest.raises(ProofError, match="h: not shown, got x > 0"):
        prove(x > 0, "h")
