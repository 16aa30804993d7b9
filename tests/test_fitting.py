import numpy as np
import pandas as pd
import pytest

import twoclocks as tc
from experiments.planted import curve_rows, run_row
from twoclocks.errors import FitError, UnidentifiedError
from twoclocks.fitting import samples_to_target
from twoclocks.records import Runs
from twoclocks.schedule import full_rate_samples

A, H0, H1 = 20.0, 2.0e6, 8.0e3


def drift_law(batch, c, clipped):
    return 45_000 * (1.8e-7 / c)


def noisy_small(batch):
    """Small batches four times as noisy as large ones."""
    return 0.24 if batch < 100 else 0.06


def test_full_rate_samples_count_half_a_warm_up():
    assert full_rate_samples([0, 500, 1000, 3000], 1000).tolist() == [0, 125, 500, 2500]
    assert full_rate_samples(7, 0) == 7


def test_samples_to_target_interpolates_the_rise_and_ignores_the_fall():
    n, y = np.array([0, 10, 20, 30, 40.0]), np.array([0.0, 0.1, 0.3, 0.4, 0.0])
    assert samples_to_target(n, y, np.ones(5), 0.2) == pytest.approx(15)
    assert samples_to_target(n, y, np.ones(5), 0.5) == np.inf


def test_a_log_that_begins_above_the_target_is_left_censored(planted):
    runs = planted(a=A, h1=H1, lr32=(1e-6, 2e-6, 4e-6))
    late = runs.curves[~((runs.curves["run_id"] == runs.runs["run_id"][35]) & (runs.curves["heldout_acc"] < 0.32))]
    row = tc.fit(Runs(runs.runs, late), target=0.3, n_boot=5).cells.iloc[35]
    assert row["target_lower"] == 0 and row["target_upper"] == late[late["run_id"] == row["run_id"]]["samples"].min()
    start = runs.curves.assign(heldout_acc=runs.curves["heldout_acc"].where(runs.curves["run_id"] != runs.runs["run_id"][0], 0.5))
    with pytest.raises(FitError, match=f"run {runs.runs['run_id'][0]}: starts at the target"):
        tc.fit(Runs(runs.runs, start), target=0.3)


def test_a_dip_on_the_way_up_is_pooled_by_weight():
    n, y = np.arange(4.0), np.array([0.0, 0.3, 0.1, 0.4])
    assert samples_to_target(n, y, np.array([1, 1, 1, 1.0]), 0.2) == 1  # pooled to 0.2 at both middle points
    assert samples_to_target(n, y, np.array([1, 1, 9, 1.0]), 0.2) > 2


def test_planted_clocks_come_back_under_unequal_noise(planted):
    runs = planted(a=A, h0=H0, h1=H1, collapse=drift_law, sd=noisy_small, lr32=(1e-6, 2e-6, 4e-6), seeds=4)
    clocks = tc.fit(runs, target=0.3, n_boot=60)
    for row in clocks.summary().itertuples():
        truth = {"a": A, "h0": H0, "h1": H1, "samples": drift_law(0, clocks.failure.drift_rate0, 0), "b_batch": 0.0, "b_drift": -1.0}[row.parameter]
        width = row.high - row.low
        assert row.low - 0.5 * width < truth < row.high + 0.5 * width, row.parameter
    assert clocks.failure.b_drift == pytest.approx(-1, abs=0.25)
    assert not clocks.warnings
    assert clocks.cells["collapse"].value_counts()["interval"] > 24 and "losing half the gain" in str(clocks)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_intervals_cover_the_truth_under_unequal_noise(planted):
    worlds, cover = 40, {name: 0 for name in ("a", "h1", "b_batch", "b_drift")}
    for seed in range(worlds):
        runs = planted(a=A, h0=H0, h1=H1, collapse=drift_law, sd=noisy_small, lr32=(1e-6, 2e-6, 4e-6), rng=seed)
        summary = tc.fit(runs, target=0.3, n_boot=100, rng=np.random.default_rng(seed)).summary().set_index("parameter")
        truth = {"a": A, "h1": H1, "b_batch": 0.0, "b_drift": -1.0}
        for name in cover:
            cover[name] += summary.loc[name, "low"] <= truth[name] <= summary.loc[name, "high"]
    # 95% nominal; with 40 worlds, 34 is the binomial 1% bound
    assert min(cover.values()) >= 34, cover


def test_runs_that_never_collapse_leave_the_failure_clock_unidentified(planted):
    clocks = tc.fit(planted(a=A, h1=H1), target=0.3, n_boot=5)
    assert set(clocks.cells["collapse"]) == {"right"}
    assert np.isinf(clocks.cells["collapse_upper"]).all()
    with pytest.raises(UnidentifiedError, match="run longer, or at a larger learning rate"):
        clocks.require("failure")
    assert "unidentified" in str(clocks)


def test_one_drift_rate_names_the_run_that_would_identify(planted):
    clocks = tc.fit(planted(lr32=(2e-6,)), target=0.3, n_boot=5)
    assert "half or twice the learning rate" in clocks.unidentified["progress"]
    clocks = tc.fit(planted(batches=(64,)), target=0.3, n_boot=5)
    assert "a batch at least four times as large" in clocks.unidentified["progress"]


def test_a_schedule_keeps_the_clip_the_runs_were_typed_with(planted):
    runs = planted()
    stored = runs.runs.assign(clip_low=np.float32(0.2), clip_high=np.float32(0.28))
    assert tc.fit(Runs(stored, runs.curves), target=0.3, n_boot=2).shared["clip"] == (0.2, 0.28)


def test_a_fit_repeats_bit_for_bit(planted):
    runs = planted(a=A, h1=H1, collapse=drift_law)
    first, second = (tc.fit(runs, target=0.3, n_boot=10) for _ in range(2))
    pd.testing.assert_frame_equal(first.summary(), second.summary(), rtol=0, atol=0)


def test_targets_not_reached_are_censored_not_dropped(planted):
    runs = planted(a=A, h1=H1, lr32=(2e-7, 2e-6, 4e-6))
    cells = tc.fit(runs, target=0.3, n_boot=5).cells
    slow = cells[cells["drift_rate"] < 1e-7]
    assert len(slow) == 12
    assert np.isinf(slow["target_upper"]).all()
    assert (slow["target_lower"] == 100_000).all()


def test_a_law_the_runs_contradict_is_flagged(planted):
    def u_shaped(*, batches, **kwargs):
        parts = [planted(a=A * (1 if b in (128, 512) else 0.3), batches=(b,), sweep=f"b{b}", **kwargs) for b in batches]
        runs, curves = (pd.concat([getattr(p, name) for p in parts], ignore_index=True) for name in ("runs", "curves"))
        return Runs(runs, curves)

    clocks = tc.fit(u_shaped(batches=(32, 128, 512, 2048), lr32=(4e-6, 8e-6)), target=0.3, n_boot=5)
    assert clocks.misfit["progress"] < 0.01
    assert "does not describe these runs" in clocks.warnings[0]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda r: r.assign(updates_per_rollout=[4] * (len(r) - 1) + [8]), r"runs differ in updates_per_rollout \(4, 8\)"),
        (lambda r: r.assign(clip_low=[None] + [0.2] * (len(r) - 1)), r"runs differ in clip_low \(null, 0.2\)"),
        (lambda r: r.assign(status="failed"), "no finished or killed runs"),
    ],
)
def test_runs_that_do_not_belong_together(planted, spoil, says):
    runs = planted()
    with pytest.raises(FitError, match=says):
        tc.fit(Runs(spoil(runs.runs), runs.curves), target=0.3)


def test_unreachable_and_trivial_targets(planted):
    with pytest.raises(FitError, match="not above the start"):
        tc.fit(planted(), target=0.1)
    assert "no runs reach the target" in tc.fit(planted(), target=0.9, n_boot=5).unidentified["progress"]


def test_a_windowed_metric_is_binned_so_that_luck_reaches_no_target(planted):
    """Reward windows of 32 completions swing by 8 points; no bin of a flat run may reach 8 points above it."""
    rng = np.random.default_rng(0)
    samples = np.arange(1, 3001) * 32
    curve = curve_rows("a", 32, samples, rng.binomial(32, 0.2, 3000) / 32, metric="reward")
    runs = Runs(pd.DataFrame([run_row(run_id="a")]), curve)
    n, y, w = tc.fitting.metric_curve(runs, "a", "reward")
    assert y.max() < 0.25
    assert w.min() > 1000
    assert samples_to_target(n, y, w, 0.28) == np.inf
