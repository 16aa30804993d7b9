"""The simulator against closed forms, against drawn completions, and what it says about clips and optimizer memory."""

import math

import numpy as np
import pytest

from twoclocks.clipping import delay, surviving_share, thresholds
from twoclocks.errors import NeverReachedError, SettingError
from twoclocks.progress import momentum_variance
from twoclocks.trajectory import MEAN_STEP, PARITY, Quadratic, noise_floor, relative_samples, simulate

NEVER = (1.0, 1e9)  # a clip that goes through the clip's code and binds nowhere


@pytest.fixture(scope="module")
def correlated():
    """Curvature between coordinates and unequal noise."""
    hessian = np.array([[0.5, 0.1, 0.0], [0.1, 0.2, 0.05], [0.0, 0.05, 0.1]])
    return Quadratic(hessian, np.array([1.0, 2.0, 0.5]), np.array([0.2, -0.3, 0.25]))


def coherent(d, curvature=1.0, size=1.0):
    """Curvature in one direction spread over d coordinates, so that each coordinate stays noise-dominated."""
    u = np.ones(d) / math.sqrt(d)
    return Quadratic(curvature * np.outer(u, u), np.ones(d), size * u), u


def test_mean_and_variance_are_within_three_standard_errors(correlated):
    """B over 16x, c over 4x, S in {1, 4, 16}, at two sample counts: every mean and variance of every coordinate."""
    batch, c, updates = (g.ravel() for g in np.meshgrid([16, 64, 256], [1e-3, 2e-3, 4e-3], [1, 4, 16]))
    seeds = 4000
    ran = simulate(correlated, batch, c, at=[1024, 4096], seeds=seeds, rng=np.random.default_rng(0), updates_per_rollout=updates, clip=NEVER)
    scores = []
    for k in range(len(batch)):
        mean, covariance = correlated.moments(ran.samples[k], batch[k], c[k])
        variance = covariance.diagonal(axis1=1, axis2=2)
        theta = ran.theta[k]
        scores.append((theta.mean(axis=1) - mean) / np.sqrt(variance / seeds))
        scores.append((theta.var(axis=1, ddof=1) / variance - 1) / math.sqrt(2 / (seeds - 1)))
    scores = np.abs(scores)
    # 324 scores, of which a thousandth would exceed 3.3 by chance
    assert (scores < 3).mean() > 0.99 and scores.max() < 4
    assert (scores**2).mean() == pytest.approx(1, abs=0.25)
    first = scores.reshape(len(batch), 2, 2, 3)[:, :, 0]  # at 1,024 completions: nothing here exceeds 3
    assert first.max() < 3


def test_covariances_match_too(correlated):
    ran = simulate(correlated, 64, 2e-3, at=[2048], seeds=20_000, rng=np.random.default_rng(1))
    _, covariance = correlated.moments(ran.samples[0], 64, 2e-3)
    assert np.cov(ran.theta[0, 0].T) == pytest.approx(covariance[0], abs=4 * covariance[0].max() / math.sqrt(20_000))


def test_directions_without_curvature_are_a_random_walk():
    flat = Quadratic(np.diag([0.0, 0.3]), np.ones(2), np.array([0.0, 0.1]))
    _, covariance = flat.moments([1600.0], 16, 1e-3)
    assert covariance[0, 0, 0] == pytest.approx(100 * 1e-6 * 16)


def test_sign_updates_follow_the_closed_form_where_noise_dominates():
    world, u = coherent(64, size=0.1)
    batch, c = np.array([16.0, 64.0, 256.0]), 1e-3
    ran = simulate(world, batch, c, at=[1024], seeds=4000, rng=np.random.default_rng(2), update="sign")
    for k, b in enumerate(batch):
        mean, covariance = world.moments(ran.samples[k], b, c, "sign")
        along = ran.theta[k, 0] @ u
        # Leading order errs by (s sqrt(B))^2/6 of a step, s = 0.1/8
        assert along.mean() == pytest.approx(mean[0] @ u, abs=4 * along.std() / math.sqrt(4000) + 0.1 * (0.0125**2 * b / 6))
        assert along.var() == pytest.approx(u @ covariance[0] @ u, rel=0.1)


def drawn_completions(world, batch, c, updates, per_rollout, bounds, seeds, rng):
    """The literal twin: every completion's gradient is drawn, its ratio computed, and the clip applied to it."""
    theta, lr, kept = np.tile(world.start, (seeds, 1)), c * math.sqrt(batch), []
    for k in range(updates):
        if k % per_rollout == 0:
            anchor = theta.copy()
        mean = -theta @ world.hessian
        g = mean[:, None] + world.noise * rng.standard_normal((seeds, batch, len(world.start)))
        y = np.einsum("nbd,nd->nb", g, theta - anchor)
        keep = y <= np.where(rng.random(y.shape) < 0.5, *bounds)
        kept.append(keep.mean())
        theta += lr * math.sqrt(batch) * (g * keep[..., None]).mean(axis=1) / world.noise
    return theta, np.mean(kept)


@pytest.mark.parametrize(("clip", "c"), [((0.2, 0.2), 6e-3), ((0.1, 0.4), 6e-3), ((0.05, 0.05), 1.2e-2)])
def test_the_clip_is_that_of_drawn_completions(clip, c):
    world = Quadratic(np.diag([0.5, 0.2, 0.1, 0.0]), np.array([1.0, 2.0, 0.5, 1.0]), np.array([0.3, -0.3, 0.25, 0.0]))
    batch, per_rollout, rollouts, seeds = 64, 4, 3, 1500
    theta, share = drawn_completions(world, batch, c, per_rollout * rollouts, per_rollout, thresholds(clip), seeds, np.random.default_rng(3))
    ran = simulate(world, batch, c, at=[batch * per_rollout * rollouts], seeds=seeds, rng=np.random.default_rng(4), updates_per_rollout=per_rollout, clip=clip)
    got = ran.theta[0, 0]
    assert share < 0.95  # the clip is at work
    assert ran.share[0] == pytest.approx(share, abs=0.004)
    error = np.sqrt((theta.var(axis=0) + got.var(axis=0)) / seeds)
    assert np.abs(theta.mean(axis=0) - got.mean(axis=0)) == pytest.approx(0, abs=4 * error.max())
    assert got.var(axis=0) / theta.var(axis=0) == pytest.approx(1, abs=4 * math.sqrt(4 / seeds))


def rate_of_drift(world, batch, c, per_rollout, clip, rng, update="normalised", seeds=400):
    """Displacement along the gradient per completion, over twelve rollouts of an almost constant gradient."""
    samples = 12 * batch * per_rollout
    ran = simulate(world, batch, c, at=[samples], seeds=seeds, rng=rng, update=update, updates_per_rollout=per_rollout, clip=clip)
    moved = (ran.theta[0, 0] - world.start) @ -world.slope(world.start)
    return moved.mean() / samples, moved.std() / math.sqrt(seeds) / samples


def tilted(d):
    """A nearly constant gradient of 0.16 (in units of one coordinate's noise) in d noisy coordinates; c that spreads ratios alike."""
    first = np.eye(d)[0]
    return Quadratic(1e-3 * first, np.ones(d), -160.0 * first), 8e-3 / math.sqrt(d), 0.16**2, math.sqrt(d)


def excess_delay(d, batch, rng, seeds):
    """Simulated delay over what dropped gradients alone account for, less 1, and its standard error."""
    world, c, drift, spread = tilted(d)
    free, free_error = rate_of_drift(world, batch, c, 4, None, rng, seeds=seeds)
    clipped, error = rate_of_drift(world, batch, c, 4, (0.2, 0.2), rng, seeds=seeds)
    share = surviving_share(batch, c, updates_per_rollout=4, clip=(0.2, 0.2), drift=drift, spread=spread)
    ratio = free / clipped / delay(share, "sgd")
    return ratio - 1, ratio * math.hypot(error / clipped, free_error / free)


def test_what_survives_a_clip_pulls_back_less_in_more_dimensions():
    """The excess goes as (S B/d)^(1/2) where it is small: 16 times the directions, about a quarter of it."""
    rng = np.random.default_rng(5)
    (few, few_error), (many, many_error) = excess_delay(64, 256, rng, 3000), excess_delay(1024, 256, rng, 600)
    assert few > 5 * few_error and many > 2 * many_error
    assert many / few == pytest.approx(1 / 4, abs=0.15)


def test_the_bound_of_dropped_gradients_is_passed_in_few_dimensions():
    world, c, _, _ = tilted(32)
    rng = np.random.default_rng(6)
    free, _ = rate_of_drift(world, 1024, c, 4, None, rng)
    clipped, error = rate_of_drift(world, 1024, c, 4, (0.2, 0.2), rng)
    assert free / (clipped + 3 * error) > 4


def test_clip_controls():
    """One update a rollout is never clipped; a larger batch is clipped more at fixed S, and not at fixed S B."""
    world, c, _, _ = tilted(64)
    batch, updates = np.array([64, 256, 64, 256, 64, 256]), np.array([1, 1, 4, 4, 16, 4])
    ran = simulate(world, batch, c, at=[64 * 16 * 4], seeds=100, rng=np.random.default_rng(6), updates_per_rollout=updates, clip=(0.2, 0.2))
    assert list(ran.share[:2]) == [1.0, 1.0]
    effect = ran.share[2] - ran.share[3]
    assert effect > 0.05
    assert ran.share[5] > ran.share[4] - 0.05 * effect


def test_adams_first_updates_carry_the_noise_that_the_formula_says():
    still = Quadratic(np.zeros((4, 4)), np.ones(4), np.zeros(4))
    at = 16 * np.arange(1, 21)
    ran = simulate(still, 16, 1e-3, at=at, seeds=20_000, rng=np.random.default_rng(7), update="adam", betas=(0.9, 0.9999))
    steps = np.diff(np.concatenate([np.zeros((1, 20_000, 4)), ran.theta[0]]), axis=0) / (1e-3 * 4)
    assert steps[0].var() == pytest.approx(1, abs=0.01)  # a sign
    # Later the second moment has settled enough for the ratio to be the first moment's
    assert steps[19].var() == pytest.approx(momentum_variance(20, 0.9), rel=0.15)


def test_adam_lies_between_sign_and_normalised_updates_on_a_coherent_quadratic():
    """Its first update is a sign (K = 0.8), its later ones are normalised (K = 1) and, with older gradients, longer."""
    x, batch = 0.02, 4096
    c = x / batch / MEAN_STEP["sign"]
    world, _ = coherent(64, size=math.sqrt(200 * c / (2 * MEAN_STEP["sign"])))
    reached = {}
    for update in ("sign", "normalised", "adam"):
        ran = simulate(world, batch, c, at=batch * np.arange(30), seeds=1000, rng=np.random.default_rng(8), update=update)
        loss = world.loss(ran.theta[0]).mean(axis=1) / world.loss(world.start)
        reached[update] = np.interp(-0.5, -loss, np.arange(30))
    assert 8 < reached["adam"] < 20
    assert reached["normalised"] < reached["adam"] < 0.85 * reached["sign"]


def test_larger_batches_need_fewer_samples_below_parity_and_more_above():
    world, u = coherent(64, size=math.sqrt(50 * 1e-3 / 2))
    x = np.array([0.1, 0.5, 1.5])
    needed = []
    for b in x / 1e-3:
        ran = simulate(world, b, 1e-3, at=b * np.arange(60), seeds=1000, rng=np.random.default_rng(9))
        mean = np.abs((ran.theta[0] @ u).mean(axis=1)) / (world.start @ u)
        needed.append(np.interp(-0.2, -mean, ran.samples[0]) * 1e-3 / -math.log(0.2))
    assert needed == pytest.approx(relative_samples(x), rel=0.06)
    assert needed[1] < needed[0] < 1 < needed[2]
    assert relative_samples(PARITY) == pytest.approx(1)


def test_samples_to_loss_is_where_simulated_runs_arrive(correlated):
    start = float(correlated.loss(correlated.start))
    for batch, c in ((16, 1e-3), (128, 2e-3)):
        predicted = correlated.samples_to_loss(start / 3, batch, c)
        at = (np.floor(predicted / batch) + np.array([0, 1])) * batch  # the updates on either side
        ran = simulate(correlated, batch, c, at=at, seeds=4000, rng=np.random.default_rng(10))
        before, after = (correlated.loss(ran.theta[0, k]) for k in (0, 1))
        error = 4 * before.std() / math.sqrt(4000)
        assert before.mean() > start / 3 - error and after.mean() < start / 3 + error


def test_settings_may_come_in_any_order_and_keep_their_place(correlated):
    ran = simulate(correlated, [256, 16, 64], [1e-3, 4e-3, 2e-3], at=[1000, 2048], seeds=2000, rng=np.random.default_rng(11))
    assert ran.samples.tolist() == [[768, 2048], [992, 2048], [960, 2048]]
    for k, (b, c) in enumerate(((256, 1e-3), (16, 4e-3), (64, 2e-3))):
        mean, covariance = correlated.moments(ran.samples[k], b, c)
        assert ran.theta[k].mean(axis=1) == pytest.approx(mean, abs=4 * np.sqrt(covariance.max() / 2000))


def test_the_same_rng_gives_the_same_runs(correlated):
    runs = [simulate(correlated, [16, 64], 2e-3, at=[640], seeds=3, rng=np.random.default_rng(12), clip=(0.2, 0.2)).theta for _ in range(2)]
    assert np.array_equal(*runs)


def test_a_diagonal_may_be_given_as_a_vector():
    diagonal, start = np.array([0.5, 0.1, 0.2]), np.array([0.3, 0.4, -0.2])
    vector, matrix = (Quadratic(h, np.array([1.0, 2.0, 0.5]), start) for h in (diagonal, np.diag(diagonal)))
    for a, b in zip(vector.moments([640], 64, 1e-3), matrix.moments([640], 64, 1e-3), strict=True):
        assert a == pytest.approx(b)
    assert vector.expected_loss([640], 64, 1e-3) == pytest.approx(matrix.expected_loss([640], 64, 1e-3))
    runs = [simulate(w, 64, 1e-3, at=[640], seeds=3, rng=np.random.default_rng(0), clip=(0.2, 0.2)).theta for w in (vector, matrix)]
    assert runs[0] == pytest.approx(runs[1])


def test_records_fall_on_whole_updates():
    flat = Quadratic(np.ones(1), np.ones(1), np.ones(1))
    rng = np.random.default_rng(0)
    for b in rng.uniform(10, 100, 50):
        ran = simulate(flat, b, 1e-3, at=b * np.arange(8), seeds=1, rng=rng)
        assert ran.samples[0] == pytest.approx(b * np.arange(8))
    nothing = simulate(flat, 64, 1e-3, at=[0], seeds=2, rng=rng, clip=(0.2, 0.2))
    assert np.isnan(nothing.share[0]) and (nothing.theta == 1).all()


def test_units():
    """Scale theta and c by k and H by 1/k (gradients keep their size): samples to a loss scaled by k stay."""
    k, hessian = 3.0, np.diag([0.5, 0.1])
    small = Quadratic(hessian, np.ones(2), np.array([0.3, 0.4]))
    large = Quadratic(hessian / k, np.ones(2), k * small.start)
    assert large.samples_to_loss(k * 0.01, 64, k * 1e-3) == pytest.approx(small.samples_to_loss(0.01, 64, 1e-3))
    assert noise_floor(64, k * 1e-3, 0.5 / k, 1.0) == pytest.approx(k**2 * noise_floor(64, 1e-3, 0.5, 1.0))


def test_refusals(correlated):
    rng = np.random.default_rng(0)
    with pytest.raises(SettingError, match="not symmetric"):
        Quadratic(np.array([[1.0, 0.5], [0.0, 1.0]]), np.ones(2), np.ones(2))
    with pytest.raises(SettingError, match="they must agree"):
        Quadratic(np.eye(2), np.ones(3), np.ones(2))
    with pytest.raises(SettingError, match="negative curvature"):
        Quadratic(np.array([1.0, -0.5]), np.ones(2), np.ones(2))
    with pytest.raises(SettingError, match="positive gradient noise"):
        Quadratic(np.eye(2), np.zeros(2), np.ones(2))
    with pytest.raises(SettingError, match="broadcast to one axis"):
        simulate(correlated, [16, 32], [1e-3, 1e-3, 1e-3], at=[64], seeds=1, rng=rng)
    with pytest.raises(SettingError, match="must be positive"):
        simulate(correlated, 16, -1e-3, at=[64], seeds=1, rng=rng)
    with pytest.raises(SettingError, match=r"updates_per_rollout \(whole\)"):
        simulate(correlated, 16, 1e-3, at=[64], seeds=1, rng=rng, updates_per_rollout=2.5)
    for at in ([], [-1.0]):
        with pytest.raises(SettingError, match="at: give at least one"):
            simulate(correlated, 16, 1e-3, at=at, seeds=1, rng=rng)
    with pytest.raises(SettingError, match="simulate the others"):
        correlated.moments([64], 16, 1e-3, "adam")
    with pytest.raises(SettingError, match="whole updates"):
        correlated.moments([1000], 4096, 1e-3)
    with pytest.raises(NeverReachedError, match="flat"):
        Quadratic(np.zeros(2), np.ones(2), np.ones(2)).samples_to_loss(0.1, 16, 1e-3)
    with pytest.raises(SettingError, match="sign, normalised or adam"):
        simulate(correlated, 16, 1e-3, at=[64], seeds=1, rng=rng, update="lion")
    with pytest.raises(SettingError, match="0 < x < 2"):
        relative_samples(2.5)
    start = float(correlated.loss(correlated.start))
    with pytest.raises(NeverReachedError, match="diverges"):
        correlated.samples_to_loss(start / 2, 4096, 1e-2)
    with pytest.raises(SettingError, match="overstep"):
        correlated.samples_to_loss(start / 2, 2400, 1e-3)
    with pytest.raises(NeverReachedError, match="least expected loss"):
        correlated.samples_to_loss(1e-9, 16, 1e-3)
    with pytest.raises(SettingError, match="not below the loss at the start"):
        correlated.samples_to_loss(2 * start, 16, 1e-3)


def test_the_benchmark_compares_like_with_like(monkeypatch):
    from experiments.benchmarks import simulator

    assert simulator.measure("adam", seeds=8, samples=256, repeats=1, d=2)["trajectories"] == 128
    right = simulator.simulate
    monkeypatch.setattr(simulator, "simulate", lambda world, batch, c, **kwargs: right(world, batch, 2 * c, **kwargs))
    with pytest.raises(RuntimeError, match="disagree"):
        simulator.measure("sign", seeds=8, samples=512, repeats=1, d=2)
