import math

import numpy as np
import pytest
import sympy as sp

from analysis.theory_figures import local_world
from twoclocks import ProgressClock, progress
from twoclocks.errors import ExtrapolationError, NeverReachedError, SettingError

CLOCK = ProgressClock(a=2.0, h0=3.0e5, h1=2.0e3)


@pytest.fixture(scope="module")
def world():
    """The Monte-Carlo model of the figures: 60 coordinates, curvature concentrated along the signal."""
    quadratic, clock = local_world()
    return -quadratic.slope(quadratic.start), quadratic.noise, quadratic.hessian, clock


def simulated(world, batch, c, updates=100_000, rng=1):
    """Monte-Carlo gain per sample of sign updates, in units of the drift c a."""
    mu, sigma, hessian, clock = world
    generator, eta, total = np.random.default_rng(rng), c * math.sqrt(batch), 0.0
    for _ in range(updates // 20_000):
        v = np.sign(mu + sigma / math.sqrt(batch) * generator.standard_normal((20_000, len(mu))))
        total += (eta * v @ mu - eta**2 / 2 * np.einsum("ni,ij,nj->n", v, hessian, v)).sum()
    return total / updates / batch / (c * clock.a)


@pytest.mark.parametrize("batch", [16, 64, 256])
@pytest.mark.parametrize("relative_c", [0.5, 1.0])
def test_local_model_agrees_with_monte_carlo(world, batch, relative_c):
    clock = world[-1]
    c = relative_c * clock.best_drift_rate(clock.h0 / clock.h1)  # the drift rate at the peak of the best lr
    predicted = clock.per_sample(batch, c) / (c * clock.a)
    # Stated error: 1.5% for B <= 256 at 0.5x and 1x of the peak's c; plus three standard errors of the simulation
    assert simulated(world, batch, c) == pytest.approx(predicted, abs=0.015 * max(1, predicted) + 0.01)


def test_noise_batch_of_the_monte_carlo_model(world):
    clock = world[-1]
    assert clock.h0 / clock.h1 == pytest.approx(147.5, rel=0.05)


def test_saturated_steps_agree_with_drawn_signs():
    """Mean of sign updates up to 16 B_sat, within the stated 11.7% of the approximation."""
    rng, s = np.random.default_rng(2), 0.1
    gain = math.sqrt(2 / math.pi)
    b_sat = progress.saturation_batch(s, gain)
    for batch in b_sat * np.array([0.01, 0.1, 1.0, 4.0, 16.0]):
        drawn = np.sign(s + rng.standard_normal(400_000) / math.sqrt(batch))
        ratio = gain * s * math.sqrt(batch) * progress.saturation(batch, b_sat) / drawn.mean()
        assert 1 - 0.117 - 0.01 < ratio < 1 + 4 * drawn.std() / 632 / drawn.mean()


def test_saturation_lowers_the_intercept_and_curvature_steepens_the_slope():
    c = np.array([1e-7, 2e-7, 4e-7])

    def line(batch, h1, b_sat):
        p = progress.saturated_per_sample(batch, c, a=2.0, h0=3e5, h1=h1, saturation_batch=b_sat)
        slope, intercept = np.polyfit(c, p / c, 1)
        return intercept, slope

    saturating, curved = ([line(b, h1, b_sat) for b in (64, 4096)] for h1, b_sat in ((0.0, 1e3), (2e3, 1e12)))
    assert saturating[1][0] < 0.6 * saturating[0][0] and saturating[1][1] == pytest.approx(saturating[0][1])
    assert curved[1][0] == pytest.approx(curved[0][0]) and curved[1][1] < 5 * curved[0][1] < 0
    huge = progress.saturated_per_sample(1e12, 1e-7, a=0.0, h0=3e5, h1=2e3, saturation_batch=1e3)
    assert huge == pytest.approx(-(1e-14) / 2 * (3e5 + 2e3 * 1e3))


def test_scale_adam_keeps_drift_rate_and_memory():
    scaled = progress.scale_adam(4, lr=1e-6, betas=(0.9, 0.999), eps=1e-8)
    assert scaled["lr"] == pytest.approx(2e-6) and scaled["eps"] == pytest.approx(5e-9)
    for old, new in zip((0.9, 0.999), scaled["betas"], strict=True):
        assert progress.memory_samples(4 * 64, new) == pytest.approx(progress.memory_samples(64, old))
    back = progress.scale_adam(1 / 4, **scaled)
    assert back["betas"] == pytest.approx((0.9, 0.999)) and back["lr"] == pytest.approx(1e-6)
    assert progress.scale_adam(4, lr=1e-6, betas=(0.0, 0.99), eps=0.0)["betas"][0] == 0.0
    with pytest.raises(SettingError, match=r"beta1=0\.9 cannot be scaled to 16 times the batch.*keep k below .* = 10"):
        progress.scale_adam(16, lr=1e-6, betas=(0.9, 0.999), eps=1e-8)
    with pytest.raises(SettingError, match="must be positive"):
        progress.scale_adam(0, lr=1e-6, betas=(0.9, 0.999), eps=1e-8)
    with pytest.raises(SettingError, match="beta2=1"):
        progress.scale_adam(2, lr=1e-6, betas=(0.9, 1.0), eps=1e-8)


def test_optimizer_memory_in_samples():
    assert progress.memory_samples(64, 0.99) == pytest.approx(6400)
    assert progress.momentum_lag(64, 0.9) == pytest.approx(576)
    assert progress.momentum_variance(1, 0.9) == pytest.approx(1)
    assert progress.momentum_variance(1000, 0.9) == pytest.approx(1 / 19)
    assert progress.decay_of_half_life(640, 64) ** 10 == pytest.approx(0.5)


def test_critical_batches_are_where_they_say():
    f, c = 0.2, 1e-6
    drift = c * CLOCK.a
    batch = CLOCK.critical_batch(c, f)
    assert drift - CLOCK.per_sample(batch, c) == pytest.approx(f * drift)
    batch = CLOCK.relative_critical_batch(c, 1 / 6)
    assert CLOCK.samples_to_gain(1, batch, c) / CLOCK.samples_to_gain(1, 0, c) == pytest.approx(1.2)


def test_best_lr_peaks_at_h0_over_h1_and_is_a_maximum():
    batches = np.geomspace(1, 1e5, 400)
    lrs = np.array([CLOCK.best_lr(b) for b in batches])
    assert batches[lrs.argmax()] == pytest.approx(CLOCK.h0 / CLOCK.h1, rel=0.05)
    best = CLOCK.best_drift_rate(64)
    assert CLOCK.per_sample(64, best) > max(CLOCK.per_sample(64, 0.9 * best), CLOCK.per_sample(64, 1.1 * best))


def test_incoherent_gradients_have_no_critical_batch():
    assert ProgressClock(a=1.0, h0=1.0, h1=0.0).critical_batch(1e-3) == math.inf
    with pytest.raises(NeverReachedError, match="every batch loses more"):  # ... unless h0 alone takes it all
        ProgressClock(a=1.0, h0=100.0, h1=0.0).critical_batch(1.0)
    assert ProgressClock(a=1.0, h0=1.0, h1=-1.0).relative_critical_batch(1e-3) == math.inf


def test_refusals():
    with pytest.raises(NeverReachedError, match="lower the learning rate"):
        CLOCK.critical_batch(1.0)
    with pytest.raises(NeverReachedError, match="not positive"):
        CLOCK.samples_to_gain(0.1, 1e9, 1e-6)
    with pytest.raises(NeverReachedError, match="no best learning rate"):
        ProgressClock(a=1.0, h0=-1.0, h1=0.0).best_lr(32)
    fitted = ProgressClock(a=2.0, h0=3.0e5, h1=2.0e3, batch_range=(32, 512), drift_range=(1e-7, 1e-6))
    with pytest.raises(ExtrapolationError, match=r"batch=1024 is outside the fitted range \[32, 512\]"):
        fitted.per_sample(1024, 5e-7)
    with pytest.raises(ExtrapolationError, match="drift_rate"):
        fitted.per_sample(64, [5e-7, 2e-6])
    small = ProgressClock(a=2.0, h0=3.0e5, h1=4.0e4, batch_range=(32, 512), drift_range=(1e-7, 1e-6))
    with pytest.raises(ExtrapolationError, match=r"critical batch=9\.625"):
        small.relative_critical_batch(5e-7, 0.05)
    assert fitted.per_sample(1024, 5e-7, extrapolate=True) == CLOCK.per_sample(1024, 5e-7)


def test_symbols_pass_through_the_shipped_functions():
    b, c, a, h0, h1 = sp.symbols("B c a h0 h1", positive=True)
    p = progress.per_sample(b, c, a=a, h0=h0, h1=h1)
    assert sp.simplify(sp.diff(p, b) + c**2 * h1 / 2) == 0
    assert sp.limit(p, c, 0) == 0
