import numpy as np
import pytest

from twoclocks.errors import NeverReachedError, SettingError
from twoclocks.program import fewest_seconds, most_progress, switch_samples

P, R, S = np.array([1.0, 2.0, 2.6]), np.array([0.5, 1.5, 1.6]) * 1e-6, np.array([0.02, 0.05, 0.01])


def test_two_stages_meet_at_the_switch_point():
    x = most_progress(P, R, samples=1e6, safety=0.8)
    assert x[1] == 0
    assert x[2] == pytest.approx(switch_samples(R[2], R[0], samples=1e6, safety=0.8))
    assert x.sum() == pytest.approx(1e6) and R @ x == pytest.approx(0.8)


def test_without_hazard_the_fastest_setting_takes_all():
    assert most_progress(P, np.zeros(3), samples=500, safety=0.5).tolist() == [0, 0, 500]


def test_an_unsafe_fast_setting_leaves_horizon_unused():
    x = most_progress([1.0, 0.9], [5e-6, 5e-6], samples=1e6, safety=0.5)
    assert x == pytest.approx([1e5, 0])


def test_wall_clock_takes_the_least_time_and_honours_safety():
    free = fewest_seconds(P, np.zeros(3), S, gain=1e5, safety=1.0)
    assert free == pytest.approx([0, 0, 1e5 / 2.6])
    hurried = fewest_seconds([1.0, 1.0], [2e-6, 0.0], [1.0, 3.0], gain=1e6, safety=0.5)
    assert hurried == pytest.approx([2.5e5, 7.5e5])


def test_hazards_of_any_scale():
    for scale in (1e-12, 1.0):
        x = most_progress(P, R * 1e6 * scale, samples=1 / scale, safety=0.8)
        assert x[2] == pytest.approx(switch_samples(1.6, 0.5, samples=1.0, safety=0.8) / scale)


def test_rates_of_very_different_size():
    assert most_progress([1.0], [1.0], samples=1e7, safety=0.8) == pytest.approx([0.8])
    x = fewest_seconds([1.0, 1e-9], [1e-3, 0.0], [1.0, 1.0], gain=1e3, safety=0.5)
    assert x == pytest.approx([500.0, 5e11], rel=1e-6)
    assert fewest_seconds([1.0, -1.0], [0.0, 0.0], [1.0, 0.0], gain=10, safety=0.5) == pytest.approx([10, 0])


def test_refusals():
    for budget in ({"samples": -100, "safety": 0.5}, {"samples": 100, "safety": 0.0}, {"samples": float("nan"), "safety": 0.5}):
        with pytest.raises(SettingError, match="both budgets must be positive"):
            most_progress([1.0], [1e-6], **budget)
    with pytest.raises(SettingError, match="must be finite"):
        most_progress([np.nan], [1e-6], samples=100, safety=0.5)
    with pytest.raises(SettingError, match="not negative"):
        fewest_seconds([1.0], [-1e-3], [1.0], gain=1e3, safety=0.5)
    with pytest.raises(NeverReachedError, match="no setting makes progress"):
        most_progress([-1.0, 0.0], [1e-6, 1e-6], samples=100, safety=0.5)
    with pytest.raises(NeverReachedError, match="costs at least 1 of a collapse"):
        fewest_seconds([1.0], [1e-3], [1.0], gain=1e3, safety=0.5)
    with pytest.raises(NeverReachedError, match="takes at least 1000 samples"):
        fewest_seconds([1.0], [1e-6], [1.0], gain=1e3, safety=0.5, samples=500)
    with pytest.raises(NeverReachedError, match="no mix of the settings"):
        fewest_seconds([1.0, 0.1], [1e-3, 1e-9], [1.0, 1.0], gain=1e3, safety=0.5, samples=1200)
    with pytest.raises(SettingError, match="gain=0"):
        fewest_seconds([1.0], [1e-3], [1.0], gain=0, safety=0.5)


def test_a_horizon_keeps_two_settings():
    """The third limit would take a third setting: the best two that satisfy all three are taken."""
    rng = np.random.default_rng(0)
    three = 0
    for _ in range(60):
        p, r, s = rng.uniform(0.5, 3, 6), rng.uniform(0.1, 2, 6) * 1e-3, rng.uniform(0.5, 3, 6)
        try:
            x = fewest_seconds(p, r, s, gain=1000.0, safety=0.5, samples=520.0)
        except NeverReachedError:
            continue
        three += 1
        assert (x > 0).sum() <= 2 and x.sum() <= 520 * (1 + 1e-9) and r @ x <= 0.5 * (1 + 1e-9) and p @ x >= 1000 * (1 - 1e-9)
        if (fewest_seconds(p, r, s, gain=1000.0, safety=0.5) @ np.ones(6)) <= 520:
            assert s @ x == pytest.approx(s @ fewest_seconds(p, r, s, gain=1000.0, safety=0.5))
    assert three > 10
