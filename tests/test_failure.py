import math

import numpy as np
import pytest

from twoclocks import FailureClock, detect_collapse, detect_collapses
from twoclocks.errors import ExtrapolationError, FitError, RecordsError
from twoclocks.failure import LAWS, early_limit, evaluation_noise, first_passage, margin, peclet, timeable

GRID = np.unique(np.concatenate([[0], np.geomspace(500, 100_000, 60)]).round())


def test_laws_have_the_exponents_they_are_named_for():
    for name, (b_batch, b_drift) in LAWS.items():
        clock = FailureClock(50_000, 128, 1e-6, b_batch, b_drift)
        assert clock.samples_to_failure(128, 1e-6) == pytest.approx(50_000)
        assert clock.samples_to_failure(2048, 2e-6) / 50_000 == pytest.approx(16**b_batch * 2**b_drift), name
        assert clock.hazard(128, 1e-6) * 50_000 == pytest.approx(1)


def test_only_the_linear_rule_separates_all_three_laws():
    def exponents(alpha):
        return [b_b + b_c * (alpha - 0.5) for b_b, b_c in LAWS.values()]

    assert exponents(1.0) == [-0.5, -1.0, 0.0]
    assert len(set(exponents(0.0))) == 2
    assert exponents(0.5) == [0.0, 0.0, 0.5]


def test_outside_the_fitted_range_is_refused():
    clock = FailureClock(50_000, 128, 1e-6, 0, -1, batch_range=(32, 512), drift_range=(5e-7, 2e-6))
    with pytest.raises(ExtrapolationError, match="run there and fit again"):
        clock.hazard(1024, 1e-6)
    with pytest.raises(ExtrapolationError, match="drift_rate"):
        clock.hazard(128, 3e-6)


@pytest.mark.parametrize("number", [0.3, 3.0, 30.0])
def test_first_passages_of_walks_have_the_distribution(number):
    """3,000 walks in steps small against the threshold; a step of sd s sees the threshold 0.58 s further away."""
    rng, steps_to_mean = np.random.default_rng(0), 400
    drift, diffusion = 1 / steps_to_mean, 1 / steps_to_mean / number
    assert peclet(drift, diffusion, 1.0) == pytest.approx(number)
    position, hit = np.zeros(3000), np.full(3000, np.inf)
    for step in range(1, 20 * steps_to_mean):
        position += drift + np.sqrt(diffusion) * rng.standard_normal(3000)
        hit[(position >= 1) & np.isinf(hit)] = step
    law = first_passage(drift, diffusion, 1 + 0.5826 * np.sqrt(diffusion))
    quantiles = np.quantile(hit, [0.1, 0.25, 0.5, 0.75])
    assert law.cdf(quantiles) == pytest.approx([0.1, 0.25, 0.5, 0.75], abs=4 * np.sqrt(0.25 / 3000))


def test_first_passage_moments_and_limits():
    law = first_passage(1e-5, 1e-6, 0.5)
    assert law.mean() == pytest.approx(5e4) and law.std() / law.mean() == pytest.approx(peclet(1e-5, 1e-6, 0.5) ** -0.5)
    assert np.isinf(first_passage(0.0, 1e-6, 0.5).mean())
    assert first_passage(1e-9, 1e-3, 1.0).median() == pytest.approx(first_passage(0.0, 1e-3, 1.0).median(), rel=0.01)
    with pytest.raises(FitError, match="must not be negative"):
        first_passage(-1.0, 1.0, 1.0)
    with pytest.raises(FitError, match="must be positive"):
        first_passage(1.0, 0.0, 1.0)


def test_chance_of_collapse_is_a_half_at_the_median():
    clock = FailureClock(50_000, 128, 1e-6, 0, -1, log_sd=0.4, batch_range=(32, 512), drift_range=(5e-7, 2e-6))
    chance = clock.collapse_probability([0, 25_000, 50_000, 100_000], 128, 1e-6)
    assert chance[[0, 2]].tolist() == [0.0, 0.5]
    assert chance[1] == pytest.approx(1 - chance[3]) and 0 < chance[1] < 0.1
    assert FailureClock(50_000, 128, 1e-6, 0, -1).collapse_probability(60_000, 128, 1e-6) == 1.0
    with pytest.raises(ExtrapolationError):
        clock.collapse_probability(1000, 1024, 1e-6)


@pytest.mark.parametrize("sd", [0.003, 0.01, 0.03])
def test_flat_series_rarely_collapse(sd):
    """False positives on planted flat series: at most 2%."""
    rng = np.random.default_rng(0)
    runs = {str(i): (GRID, 0.3 + sd * rng.standard_normal(len(GRID))) for i in range(500)}
    found, noise = detect_collapses(runs)
    assert noise == pytest.approx(sd, rel=0.1)
    assert sum(c.confirmed for c in found.values()) <= 0.02 * len(runs)


def falling(at, *, rise=0.1, drop=0.15, noise=0.005, seed=0):
    y = 0.2 + rise * np.minimum(1, GRID / 10_000) - drop * (at < GRID)
    return y + noise * np.random.default_rng(seed).standard_normal(len(GRID))


@pytest.mark.parametrize("at", [12_000, 30_000, 60_000])
def test_a_planted_drop_is_bracketed(at):
    found = detect_collapse(GRID, falling(at), 0.005)
    assert found.kind == "interval"
    # Smoothing over +-10% moves the onset by at most that
    assert found.lower * 0.9 <= at <= found.upper * 1.1


def test_a_drop_the_run_does_not_outlive_is_censored_at_its_onset():
    found = detect_collapse(GRID, falling(90_000), 0.005)
    assert (found.kind, found.upper) == ("right", math.inf)
    assert 70_000 < found.lower < 100_000


def test_a_drop_within_the_first_evaluations_is_left_censored():
    found = detect_collapse(GRID, falling(1000, rise=0.0), 0.005)
    assert (found.kind, found.lower) == ("left", 0.0)
    assert found.upper >= 1000


def test_the_early_limit_is_in_samples_and_one_for_all_runs():
    """A coarsely evaluated run is not "too early" for longer than a finely evaluated one."""
    coarse = np.arange(0, 100_001, 4000.0)
    found, _ = detect_collapses({"fine": (GRID, falling(90_000)), "coarse": (coarse, np.interp(coarse, GRID, falling(30_000)))})
    assert found["coarse"].kind == "interval"
    assert found["coarse"].lower <= 32_000


def test_a_short_run_does_not_set_the_early_limit():
    runs = {"long": (GRID, falling(90_000)), "killed": (GRID[:4], falling(90_000)[:4])}
    assert early_limit([n for n, _ in runs.values()]) == GRID[10]
    assert early_limit([GRID[:4]]) == GRID[3]
    assert timeable(GRID[:4], GRID[10]).tolist() == [GRID[10]]


def test_a_dip_that_recovers_is_no_collapse():
    y = 0.3 - 0.2 * ((GRID > 30_000) & (GRID < 34_000))
    assert not detect_collapse(GRID, y, 0.005).confirmed


def test_a_run_without_a_confirmed_collapse_is_censored_where_one_could_last_be_confirmed():
    last = GRID[GRID[-1] >= 1.25 * GRID][-1]
    rise = 0.2 + GRID / 1e6
    for y in (rise, np.where(GRID < 90_000, rise, 0.0)):  # the second ends in a drop too late to be confirmed
        found = detect_collapse(GRID, y, 0.005)
        assert (found.kind, found.lower, found.upper) == ("right", last, math.inf)
    assert detect_collapse(GRID, np.where(last > GRID, rise, 0.0), 0.005).confirmed


def test_noise_is_about_the_chord_and_needs_three_points():
    rng = np.random.default_rng(0)
    steep = (GRID, GRID / 1e5 + 0.01 * rng.standard_normal(len(GRID)))
    assert evaluation_noise([steep] * 1) == pytest.approx(0.01, rel=0.35)
    assert margin(0.001) == 0.05
    assert margin(0.02) == pytest.approx(0.08)
    with pytest.raises(RecordsError, match="three evaluations"):
        evaluation_noise([(np.arange(2), np.arange(2))])
    with pytest.raises(RecordsError, match="increasing"):
        detect_collapse([0, 2, 1], [1, 1, 1], 0.01)


def test_a_collapse_may_have_to_lose_half_of_what_was_gained():
    """A drop of 8 points after a gain of 30 is a collapse by margin, and keeps more than half of the gain; a fall to the start does not."""
    rise = 0.2 + 0.3 * np.minimum(1.0, GRID / 20_000)
    for fall, kinds in ((0.08, ("interval", "right")), (0.3, ("interval", "interval"))):
        y = rise - fall * (GRID > 40_000)
        assert tuple(detect_collapse(GRID, y, 0.005, share=share).kind for share in (0.0, 0.5)) == kinds
