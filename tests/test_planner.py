import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import twoclocks as tc
from twoclocks import planner
from twoclocks.errors import MisfitError, NeverReachedError, SettingError, UnidentifiedError

SHARED = {"group": 8, "updates_per_rollout": 4, "clip": (0.2, 0.2), "lr_warmup_samples": 8192, "testbed": "planted"}
RANGES = {"batch_range": (64.0, 2048.0), "drift_range": (2e-7, 4e-6)}


def clocks(progress, failure, *, draws=40, spread=0.02):
    """Hand-made clocks with a narrow bootstrap."""
    rng = np.random.default_rng(0)
    wobble = lambda value: value * (1 + spread * rng.standard_normal(draws))  # noqa: E731
    both = {"progress": progress, "failure": failure}

    def require(name):
        if both[name] is None:
            raise UnidentifiedError(f"{name} clock: run longer")
        return both[name]

    return SimpleNamespace(
        require=require,
        shared=SHARED,
        metric="heldout_acc",
        gain=0.1,
        warnings=[],
        cells=pd.DataFrame({"run_id": ["a", "b"]}),
        draws={
            "progress": pd.DataFrame({k: wobble(getattr(progress, k)) for k in ("a", "h0", "h1")}),
            "failure": pd.DataFrame({k: wobble(getattr(failure, k)) for k in ("samples", "b_batch", "b_drift")}) if failure else pd.DataFrame(),
        },
    )


UNCLIPPED = tc.FailureClock(60_000, 256, 1e-6, 0.0, -1.0, **RANGES)
LOCAL = tc.ProgressClock(a=2.0, h0=2.0e5, h1=2.0e3, **RANGES)


def test_vertex_is_the_optimum_over_all_pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        p, r = rng.uniform(0, 2e-6, 8), rng.uniform(1e-6, 3e-5, 8)
        found = planner.solve(np.arange(8.0), np.arange(8.0), p, r, 100_000, 0.8)
        best = max(best_pair(p[[i, j]], r[[i, j]], 100_000, 0.8) for i, j in itertools.combinations(range(8), 2))
        assert found.gain == pytest.approx(best, rel=1e-6)
        assert len(found.batch) <= 2
        assert found.damage <= 0.8 * (1 + 1e-9)
        assert found.samples.sum() <= 100_000 * (1 + 1e-9)


def best_pair(p, r, n, damage):
    """Best split of two settings by brute force over the closed-form corners."""
    corners = [(min(n, damage / r[0]), 0.0), (0.0, min(n, damage / r[1]))]
    if r[0] != r[1]:
        x = (damage - n * r[1]) / (r[0] - r[1])
        if 0 <= x <= n:
            corners.append((x, n - x))
    return max(p[0] * x + p[1] * y for x, y in corners)


def test_an_unclipped_clock_gets_one_constant_setting_at_a_small_batch():
    schedule = tc.plan(clocks(LOCAL, UNCLIPPED), samples=100_000)
    (stage,) = schedule.stages
    assert stage.setting.batch == 64
    assert "one constant setting" in schedule.provenance["reason"]
    assert schedule.samples % stage.setting.rollout == 0
    assert schedule.lr_warmup_samples == 8192


# Progress rises linearly in B, hazard as B^0.4: the frontier p(r) is convex, so sharing the run between the ends wins
NARROW = {"batch_range": (64.0, 2048.0), "drift_range": (0.999e-6, 1.001e-6)}
RISING = tc.ProgressClock(a=2.0, h0=0.0, h1=-1.95e3, **NARROW)
BUYABLE = tc.FailureClock(365_000, 64, 1e-6, -0.4, -1.0, **NARROW)


def test_a_non_concave_frontier_gets_two_stages():
    schedule = tc.plan(clocks(RISING, BUYABLE), samples=150_000)
    assert [s.setting.batch for s in schedule.stages] == [2048, 64]
    assert "two stages" in schedule.provenance["reason"]
    assert 0.75 < schedule.provenance["predicted_damage"] <= 0.8
    assert 150_000 - 2 * 2048 * 4 < schedule.samples <= 150_000
    assert schedule.provenance["run_ids"] == ["a", "b"]


def test_an_uncertain_gain_is_not_worth_a_switch():
    schedule = tc.plan(clocks(RISING, BUYABLE, spread=0.6), samples=150_000)
    assert len(schedule.stages) == 1


def test_where_every_setting_fails_the_run_ends_early():
    deadly = tc.FailureClock(5_000, 256, 1e-6, 0.0, -1.0, **RANGES)
    schedule = tc.plan(clocks(LOCAL, deadly), samples=1_000_000)
    assert schedule.samples < 1_000_000
    assert 0.79 < schedule.provenance["predicted_damage"] <= 0.8


@pytest.mark.parametrize("samples", [2_000, 9_000, 14_500, 100_001])
def test_neither_budget_is_overspent_by_rounding(samples):
    wide = {"batch_range": (1024.0, 2048.0), "drift_range": (2e-7, 4e-6)}
    made = tc.FailureClock(4_000, 2048, 1e-6, 0.0, -1.0, **wide)
    try:
        schedule = tc.plan(clocks(tc.ProgressClock(a=2.0, h0=2e5, h1=1.0, **wide), made), samples=samples)
    except SettingError as error:
        assert "before one rollout" in str(error)
        return
    assert schedule.samples <= samples
    assert schedule.provenance["predicted_damage"] <= 0.8 + 1e-9


def test_a_law_the_runs_contradict_is_not_planned_from_by_default():
    made = clocks(LOCAL, UNCLIPPED)
    made.warnings = ["progress clock: its law does not describe these runs"]
    with pytest.raises(MisfitError, match="accept_misfit=True"):
        tc.plan(made, samples=100_000)
    assert made.warnings[0] in tc.plan(made, samples=100_000, accept_misfit=True).provenance["notes"]


def test_a_life_longer_than_any_run_is_marked_extrapolated():
    known = dataclasses.replace(UNCLIPPED, longest=50_000.0)
    notes = tc.plan(clocks(LOCAL, known), samples=100_000).provenance["notes"]
    assert ["extrapolated" in note for note in notes] == [True]
    assert not tc.plan(clocks(LOCAL, UNCLIPPED), samples=100_000).provenance["notes"]


def test_refusals():
    with pytest.raises(UnidentifiedError, match="failure clock"):
        tc.plan(clocks(LOCAL, None), samples=100_000)
    with pytest.raises(SettingError, match=r"safety=1\.5"):
        tc.plan(clocks(LOCAL, UNCLIPPED), samples=100_000, safety=1.5)
    with pytest.raises(SettingError, match="samples=-100000"):
        tc.plan(clocks(LOCAL, UNCLIPPED), samples=-100_000)
    with pytest.raises(SettingError, match="before one rollout of 256 completions"):
        tc.plan(clocks(LOCAL, UNCLIPPED), samples=200)
    with pytest.raises(NeverReachedError, match="no setting makes progress"):
        tc.plan(clocks(tc.ProgressClock(a=1e-9, h0=1e9, h1=1.0, **RANGES), UNCLIPPED), samples=100_000)
    apart = tc.FailureClock(60_000, 256, 1e-6, 0.0, -1.0, batch_range=(4096, 8192), drift_range=(2e-7, 4e-6))
    with pytest.raises(SettingError, match="do not overlap"):
        tc.plan(clocks(LOCAL, apart), samples=100_000)


def test_candidates_make_whole_groups():
    batch, _ = planner.candidates(LOCAL, UNCLIPPED, 12, 4)
    assert (batch * 4 % 12 == 0).all()
    assert len(np.unique(batch)) > 5
