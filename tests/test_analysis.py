import math

import numpy as np
import pandas as pd
import pytest

from analysis import claims, fits, statistics, verify
from analysis.statistics import Effect
from experiments.planted import curve_rows
from twoclocks.records import Runs

CURVATURE = {"a": 20.0, "h1": 1.5e4}


def merged(*parts):
    return Runs(*(pd.concat([getattr(p, name) for p in parts], ignore_index=True) for name in ("runs", "curves")))


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(claims, "N_BOOT", 20)


# -- statistics ---------------------------------------------------------------------------------------------------


def test_effect_intervals_are_t_intervals():
    effect = statistics.per_seed(np.array([1.0, 2.0, 3.0]))
    assert effect.interval() == pytest.approx((2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), rel=1e-4)
    assert effect.p_above(2.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("value", "verdict"), [(1.0, "supported"), (0.1, "undetermined"), (-1.0, "contradicted")])
def test_above(value, verdict):
    assert statistics.above(Effect(value, 0.2, np.inf), 0.0) == verdict


@pytest.mark.parametrize(("value", "se", "verdict"), [(0.0, 0.05, "supported"), (0.0, 0.3, "undetermined"), (0.6, 0.1, "contradicted")])
def test_equivalence(value, se, verdict):
    assert statistics.inside(Effect(value, se, np.inf), -0.25, 0.25) == verdict


def test_per_seed_intervals_cover_with_three_seeds():
    rng = np.random.default_rng(0)
    inside = [low <= 0 <= high for low, high in (statistics.per_seed(rng.standard_normal(3)).interval() for _ in range(2000))]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)


# -- claims on planted worlds, true and false ---------------------------------------------------------------------


@pytest.mark.parametrize(("h1", "verdict"), [(1.5e4, "supported"), (0.0, "contradicted")])
def test_batch_penalty(planted, h1, verdict):
    runs = planted(a=20.0, h1=h1, lr32=(2e-6, 3e-6), sd=lambda b: 0.02, seeds=5)
    claim = claims.batch_penalty("TC1b", runs, "planted", clipped=True, target=0.3)
    assert claim.verdict == verdict
    assert len(claim.runs) == 20


@pytest.mark.parametrize(("falls", "verdict"), [(True, "supported"), (False, "contradicted")])
def test_critical_batch_falls(planted, falls, verdict):
    # Curvature doubles its toll with c; where the toll is the same at both drift rates the claim is false
    slow = planted(**CURVATURE, lr32=(2e-6,), sd=lambda b: 0.01)
    fast = planted(**CURVATURE, lr32=(5e-6,), sd=lambda b: 0.01) if falls else planted(a=20.0, h1=1.5e4 * 2 / 5, lr32=(5e-6,), sd=lambda b: 0.01)
    assert claims.critical_batch_falls(merged(slow, fast), "planted", target=0.3).verdict == verdict


def test_a_gain_with_batch_is_not_a_falling_critical_batch(planted):
    """Larger batches faster at both rates: the contrast alone would read as support."""
    runs = planted(a=20.0, h1=-1.5e4, lr32=(2e-6, 2.2e-6), sd=lambda b: 0.005)
    assert claims.critical_batch_falls(runs, "planted", target=0.3).verdict != "supported"


@pytest.mark.parametrize(
    ("b_batch", "b_drift", "verdict"), [(0.0, -1.0, "supported"), (0.5, -1.0, "contradicted"), (0.0, -3.0, "contradicted"), (0.0, -2.0, "contradicted")]
)
def test_failure_exponents(planted, b_batch, b_drift, verdict):
    law = lambda b, c, clipped: 20_000 * (b / 256) ** b_batch * (c / 7e-7) ** b_drift  # noqa: E731
    runs = planted(collapse=law, lr32=(2e-6, 4e-6, 8e-6), clips=(False,), seeds=4, sd=lambda b: 0.1)
    claim = claims.failure_exponents(runs, "planted")
    assert claim.verdict == verdict, claim


def test_too_few_collapses_leave_the_failure_law_undetermined(planted):
    claim = claims.failure_exponents(planted(clips=(False,)), "planted")
    assert (claim.verdict, claim.effect) == ("undetermined", None)
    assert "0 timed" in claim.note


@pytest.mark.parametrize(("extra", "verdict"), [(0.4, "supported"), (0.0, "contradicted")])
def test_clip_delays(planted, extra, verdict):
    law = lambda b, c, clipped: 15_000 * (7e-7 / c) * ((b / 256) ** extra if clipped else 1)  # noqa: E731
    runs = planted(collapse=law, lr32=(3e-6, 6e-6), clips=(True, False), seeds=4, sd=lambda b: 0.05)
    assert claims.clip_delays(runs, "planted").verdict == verdict


@pytest.mark.parametrize(("early", "life", "verdict"), [(0.6, 0.4, "supported"), (1.0, 0.4, "contradicted"), (0.6, 1.0, "contradicted")])
def test_wide_clip_trades(planted, early, life, verdict):
    law = lambda b, c, clipped: 40_000 * (7e-7 / c) * (1 if clipped else life)  # noqa: E731
    runs = planted(
        collapse=law, early=lambda clipped: 1.0 if clipped else early, lr32=(4e-6, 8e-6), clips=(True, False), seeds=4, sd=lambda b: 0.05, a=40.0
    )  # fmt: skip
    claim = claims.wide_clip_trades(runs, "planted", target=0.25)
    assert claim.verdict == verdict, claim


@pytest.mark.parametrize(("exponent", "verdict"), [(0.0, "supported"), (0.5, "contradicted")])
def test_drift_exponent(planted, exponent, verdict):
    runs, rng = planted(seeds=4), np.random.default_rng(0)
    curves = []
    for run in runs.runs.itertuples():
        n = np.arange(1, 30) * 1000
        gain = 5.0 * run.drift_rate * run.batch ** (1 + exponent) * (1 + 0.1 * rng.standard_normal(len(n)))
        curves.append(curve_rows(run.run_id, run.batch, n, gain, metric="probe_gain"))
    claim = claims.drift_exponent(Runs(runs.runs, pd.concat(curves, ignore_index=True)), "planted")
    assert claim.verdict == verdict
    assert claim.effect.value == pytest.approx(exponent, abs=0.05)


def test_runs_that_miss_the_target_are_not_averaged_away(planted):
    claim = claims.batch_penalty("TC1b", planted(**CURVATURE, lr32=(5e-8, 2e-6)), "planted", clipped=True, target=0.3)
    assert claim.verdict == "undetermined"
    assert "did not reach the target" in claim.note


def test_holm_withdraws_what_passes_only_alone():
    base = claims.Claim("X", "t", "s", "b", [], verdict="supported", effect=Effect(1, 0.4, np.inf))
    strong, weak = claims.replace(base, name="A", p=1e-5), claims.replace(base, name="B", p=0.04)
    other = claims.replace(base, name="C", p=0.9, verdict="undetermined")
    kept = {c.name: c for c in claims.holm([strong, weak, other])}
    assert kept["A"].verdict == "supported"
    assert kept["B"].verdict == "undetermined"
    assert "not after Holm" in kept["B"].note


# -- comparison ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ("x 1.00000 y", "x 1.00005 y", 0),
        ("x 1.000 y", "x 1.001 y", 1),
        ("runs: 48", "runs: 49", 1),
        ("runs: 1000000", "runs: 1000001", 1),  # integers exactly, however large
        ("p = 1e-20", "p = 3e-20", 0),  # rounding noise about zero
        ("supported 1.0", "contradicted 1.0", 1),
        ("a\nb", "a", 1),
        ("run-1a2b", "run-9z8y", 1),
        ("-0.5 [-1.0, 2]", "-0.50001 [-1.0, 2]", 0),
    ],
)
def test_differences(old, new, moved):
    assert len(verify.differences(old, new)) == moved


def test_compare_names_the_file_and_the_number(tmp_path):
    for root, value in (("old", "0.5"), ("new", "0.6")):
        (tmp_path / root / "fits").mkdir(parents=True)
        (tmp_path / root / "fits/a.json").write_text(f'{{"h1": {value}}}')
    (tmp_path / "new/fits/b.json").write_text("{}")
    moved = verify.compare(tmp_path / "old", tmp_path / "new", ["fits/*.json"])
    assert any("fits/a.json" in m and "0.5 became 0.6" in m for m in moved)
    assert "fits/b.json: not committed" in moved


def test_rounding_keeps_integers_and_nulls():
    assert fits.rounded({"a": 1 / 3, "n": 48, "x": float("nan"), "l": (1e-7 / 3,)}) == {"a": 0.333333, "n": 48, "x": None, "l": [3.33333e-8]}
