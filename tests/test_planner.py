import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import twoclocks as tc
from twoclocks.errors import ExtrapolationError, MisfitError, NeverReachedError, SettingError, UnidentifiedError
from twoclocks.planner.rates import candidates
from twoclocks.planner.spend import Budget, best_vertex

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


class Drawn:
    """Rates of eight numbered settings."""

    pace = None

    def __init__(self, rng):
        self.p, self.r = rng.uniform(0, 2e-6, 8), rng.uniform(1e-6, 3e-5, 8)

    def gain(self, batch, drift_rate):
        return self.p[batch.astype(int)]

    def hazard(self, batch, drift_rate):
        return self.r[batch.astype(int)]


def test_vertex_is_the_optimum_over_all_pairs():
    rng = np.random.default_rng(0)
    for _ in range(20):
        rates = Drawn(rng)
        p, r = rates.p, rates.r
        found = best_vertex(rates, np.arange(8.0), np.arange(8.0), Budget(100_000, 0.8, 1.0, "progress"))
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
    with pytest.raises(SettingError, match="progress needs a horizon"):
        tc.plan(clocks(LOCAL, UNCLIPPED))
    with pytest.raises(SettingError, match="choose progress or wall_clock"):
        tc.plan(clocks(LOCAL, UNCLIPPED), samples=100, objective="speed")
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
    batch, _ = candidates(LOCAL, UNCLIPPED, 12, 4)
    assert (batch % 12 == 0).all()
    small, _ = candidates(dataclasses.replace(LOCAL, batch_range=(6.0, 64.0)), dataclasses.replace(UNCLIPPED, batch_range=(6.0, 64.0)), 12, 4)
    assert (small * 4 % 12 == 0).all() and small.min() == 6
    assert len(np.unique(batch)) > 5


def test_the_explanation_prices_what_binds():
    schedule = tc.plan(clocks(LOCAL, UNCLIPPED), samples=100_000)
    lines = schedule.provenance["explanation"]
    assert any(line.startswith("runner-up: batch") for line in lines)
    # Both budgets bind, so that N c = K = D * 60,000 * 1e-6 and the gain is K a - K^2 (h0 + 64 h1)/(2 N)
    n, k, curvature = 100_000 - 8192 / 2, 0.8 * 0.06, 2.0e5 + 64 * 2.0e3
    price = {line.split(":")[0]: float(line.split(" by ")[1].split()[0]) for line in lines if ": binds" in line}
    assert price["samples"] == pytest.approx(1000 * k**2 * curvature / (2 * n**2), rel=0.05)
    assert price["safety"] == pytest.approx(0.1 * 0.06 * (2.0 - k * curvature / n), rel=0.05)
    assert "best two-stage plan" in schedule.explain() and "runner-up" in schedule.explain()


def test_a_budget_to_spare_has_no_price():
    safe = tc.FailureClock(1e9, 256, 1e-6, 0.0, -1.0, **RANGES)
    lines = tc.plan(clocks(LOCAL, safe), samples=100_000).provenance["explanation"]
    assert any(line.startswith("safety: does not bind") for line in lines)


def test_a_robust_plan_slows_down():
    plain, robust = (tc.plan(clocks(LOCAL, UNCLIPPED, spread=0.3), samples=100_000, robust=r) for r in (False, True))
    assert robust.stages[0].setting.drift_rate < plain.stages[0].setting.drift_rate or robust.samples < plain.samples
    assert robust.provenance["predicted_damage"] < plain.provenance["predicted_damage"]
    assert "lower 95% bound" in robust.explain()


FASTER = {64.0: 100.0, 2048.0: 1000.0}


def test_the_wall_clock_trades_samples_for_throughput():
    """At ten times the throughput the large batch wins on seconds though it loses on samples."""
    made = clocks(LOCAL, tc.FailureClock(1e9, 256, 1e-6, 0.0, -1.0, **RANGES))
    slow = tc.plan(made, samples=10_000_000, objective="wall_clock", throughput={64.0: 100.0, 2048.0: 100.0})
    fast = tc.plan(made, objective="wall_clock", throughput=FASTER)
    assert slow.stages[0].setting.batch == 64 < fast.stages[0].setting.batch
    assert fast.provenance["predicted_seconds"] < slow.provenance["predicted_seconds"]
    assert fast.provenance["predicted_gain_in_targets"] == pytest.approx(1, rel=0.1)
    assert any(line.startswith("gain: binds") for line in fast.provenance["explanation"])
    assert tc.plan(made, objective="wall_clock", throughput=lambda b: 100.0 * (b / 64) ** (np.log(10) / np.log(32))).stages == fast.stages


def test_the_wall_clock_as_the_runs_measured_it():
    made = clocks(LOCAL, dataclasses.replace(UNCLIPPED, samples=600_000))
    with pytest.raises(SettingError, match="needs throughput="):
        tc.plan(made, objective="wall_clock")
    made.cells = pd.DataFrame({"run_id": ["a", "b"], "batch": [64, 2048], "seconds_per_sample": [0.01, 0.001]})
    assert tc.plan(made, objective="wall_clock").stages == tc.plan(made, objective="wall_clock", throughput=FASTER).stages
    with pytest.raises(ExtrapolationError, match="throughput is known for batches 64 to 512"):
        tc.plan(made, objective="wall_clock", throughput={64: 1.0, 512: 2.0})
    with pytest.raises(NeverReachedError, match="more than"):
        tc.plan(made, samples=300, objective="wall_clock")


def test_named_settings_are_the_only_candidates():
    fixed = {"group": 8, "updates_per_rollout": 4, "clip": (0.2, 0.2)}
    choices = [tc.Setting(batch=b, lr=1e-6 * b**0.5, **fixed) for b in (128, 512)]
    (stage,) = tc.plan(clocks(LOCAL, UNCLIPPED), samples=50_000, settings=choices).stages
    assert stage.setting.batch in (128, 512) and stage.setting.drift_rate == pytest.approx(1e-6)
    with pytest.raises(SettingError, match="group=4, but the clocks"):
        tc.plan(clocks(LOCAL, UNCLIPPED), samples=50_000, settings=[tc.Setting(batch=128, lr=1e-5, **fixed | {"group": 4})])
    with pytest.raises(ExtrapolationError, match="outside the fitted batch"):
        tc.plan(clocks(LOCAL, UNCLIPPED), samples=50_000, settings=[tc.Setting(batch=4096, lr=6.4e-5, **fixed)])
    with pytest.raises(SettingError, match="name at least one"):
        tc.plan(clocks(LOCAL, UNCLIPPED), samples=50_000, settings=[])
