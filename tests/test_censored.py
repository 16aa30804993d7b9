import numpy as np
import pytest
from scipy import stats
from scipy.optimize import approx_fprime

from twoclocks import censored
from twoclocks.censored import Times
from twoclocks.errors import FitError


def linear(design):
    """A law whose mean is linear in theta."""
    return lambda theta: (theta @ design.T, np.broadcast_to(design, (*theta.shape[:-1], *design.shape)))


@pytest.fixture
def times():
    """Exact, interval, right- and left-censored rows in two noise groups, some far in the tails."""
    lower = np.array([100.0, 200.0, 300.0, 400.0, 0.0, 1e-9, 1e9])
    upper = np.array([100.0, 200.0, 350.0, np.inf, 50.0, 1e-8, 1.1e9])
    return Times(lower, upper, np.array([0, 1, 0, 1, 0, 1, 0]))


def test_likelihood_is_scipys(times):
    mean, sd = np.full(7, 5.0), np.array([0.5, 1.0, 0.5, 1.0, 0.5, 3.0, 4.0])
    expected = [stats.norm.logpdf(np.log(100), 5, 0.5), stats.norm.logpdf(np.log(200), 5, 1.0)]
    for lo, hi, s in zip(times.lower[2:], times.upper[2:], sd[2:], strict=True):
        with np.errstate(divide="ignore"):
            a, b = (np.log(lo) - 5) / s, (np.log(hi) - 5) / s
        expected.append(np.log(stats.norm.sf(a) - stats.norm.sf(b) if a > 0 else stats.norm.cdf(b) - stats.norm.cdf(a)))
    constant = times.exact.sum() * censored.HALF_LOG_2PI
    assert censored.log_likelihood(times, mean, sd) - constant == pytest.approx(sum(expected), rel=1e-9)


def test_score_is_the_gradient(times):
    rng = np.random.default_rng(0)
    mean, log_sd = 5 + rng.standard_normal(7), 0.3 * rng.standard_normal(7)
    value, by_mean, by_log_sd = censored.score(times, mean, np.exp(log_sd))
    assert value.sum() == censored.log_likelihood(times, mean, np.exp(log_sd))
    assert by_mean == pytest.approx(approx_fprime(mean, lambda m: censored.log_likelihood(times, m, np.exp(log_sd)), 1e-7), rel=1e-4)
    assert by_log_sd == pytest.approx(approx_fprime(log_sd, lambda s: censored.log_likelihood(times, mean, np.exp(s)), 1e-7), rel=1e-4)


def test_far_tails_stay_finite():
    far = Times(np.array([1e300, 0.0]), np.array([np.inf, 1e-300]), np.zeros(2, int))
    value, by_mean, by_log_sd = censored.score(far, np.zeros(2), np.full(2, 0.1))
    assert np.isfinite([*value, *by_mean, *by_log_sd]).all()


def test_group_noise_is_told_apart():
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1], 200)
    exact = np.exp(8 + np.where(group == 0, 0.05, 0.5) * rng.standard_normal(400))
    found = censored.fit(Times(exact, exact, group), linear(np.ones((400, 1))), [np.array([7.0])])
    sd = found.sd(group)
    assert sd[0] == pytest.approx(0.05, rel=0.15)
    assert sd[-1] == pytest.approx(0.5, rel=0.15)
    assert found.theta[0] == pytest.approx(8, abs=0.02)  # the precise group decides, not the average


def test_misfit_is_uniform_under_the_law_and_small_without_it():
    rng = np.random.default_rng(0)
    cell = np.repeat(np.arange(6), 4)

    def p_value(bend):
        drawn = np.exp(8 + 0.2 * cell + bend * (cell - 2.5) ** 2 + 0.1 * rng.standard_normal(24))
        times = Times(drawn, drawn, np.zeros(24, int))
        law = linear(np.column_stack([np.ones(24), cell]))
        return censored.misfit(times, law, censored.fit(times, law, [np.array([8.0, 0.0])]), cell)

    straight = [p_value(0.0) for _ in range(60)]
    assert 0.3 < np.mean(straight) < 0.7
    assert max(p_value(0.1) for _ in range(10)) < 0.01


def test_times_that_cannot_be_are_refused():
    bad = Times(np.array([np.nan, 1.0]), np.array([np.nan, 1.0]), np.zeros(2, int))
    with pytest.raises(FitError, match="not finite"):
        censored.fit(bad, linear(np.ones((2, 1))), [np.array([1.0])])


@pytest.fixture
def sweep():
    """72 interval- and right-censored times in three covariates and four noise groups: (times, law, fit, looks)."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(4), 18)
    design = np.column_stack([np.ones(72), rng.standard_normal((72, 2))])
    looks = [np.geomspace(100, 4000, 40)] * 72
    law, mean = linear(design), design @ [8.0, 0.5, -1.0]
    times = censored.simulate(mean, np.full(72, 0.3), looks, group, rng.standard_normal((1, 72)), exact=False)
    times = Times(times.lower[0], times.upper[0], group)
    return times, law, censored.fit(times, law, [np.array([7.0, 0.0, 0.0])]), looks


def test_newton_over_many_worlds_finds_what_statsmodels_finds(sweep):
    times, law, fitted, looks = sweep
    worlds = censored.simulate(law(fitted.theta)[0], fitted.sd(times.group), looks, times.group, np.random.default_rng(2).standard_normal((8, 72)), exact=False)
    together = censored.refit(worlds, law, fitted)
    for one, lower, upper in zip(np.hstack([together.theta, together.noise]), worlds.lower, worlds.upper, strict=True):
        alone = censored.fit(Times(lower, upper, times.group), law, [fitted.theta])
        assert one == pytest.approx([*alone.theta, *alone.noise], abs=1e-5)


def test_weights_count_rows_as_often_as_they_say(sweep):
    times, law, fitted, _ = sweep
    weights = np.random.default_rng(3).integers(0, 3, 72)
    again = np.repeat(np.arange(72), weights)
    design = law(fitted.theta)[1]
    repeated = censored.fit(times.rows(again), linear(design[again]), [fitted.theta])
    assert censored.refit(times, law, fitted, weights=weights[None].astype(float)).theta[0] == pytest.approx(repeated.theta, abs=1e-4)


def test_the_two_bootstraps_and_the_information_agree(sweep):
    times, law, fitted, looks = sweep
    drawn = censored.bootstrap(times, law, fitted, looks, 400, exact=False, rng=np.random.default_rng(4))
    seeds = censored.resample(times, law, fitted, np.arange(72), 400, rng=np.random.default_rng(5))
    expected = np.sqrt(np.diag(fitted.covariance))
    assert drawn.theta.std(0) == pytest.approx(expected, rel=0.25)
    assert seeds.theta.std(0) == pytest.approx(expected, rel=0.35)


def test_a_bounded_parameter_stays_within(sweep):
    times, law, fitted, _ = sweep
    bounds = [(-np.inf, np.inf), (0.6, 0.7), (-np.inf, np.inf)]
    assert censored.fit(times, law, [np.array([7.0, 0.65, 0.0])], bounds).theta[1] == pytest.approx(0.6)
    assert censored.refit(times, law, fitted, bounds, weights=np.ones((2, 72))).theta[:, 1] == pytest.approx(0.6)
