import numpy as np
import pytest

from twoclocks.errors import FitError, NeverReachedError
from twoclocks.noise import NoiseParts, inflated_model, mean_inflation, reuse_inflation, reused_intra, split_noise, two_batch_noise, two_batch_signal

D = 6


def planted(rng, prompts, group, signal=0.5, inter=2.0, intra=9.0):
    """Gradients without baseline: |G|^2, s_inter and s_intra are what they are called."""
    g = np.full(D, np.sqrt(signal / D))
    between = rng.normal(0, np.sqrt(inter / D), (prompts, 1, D))
    return g + between + rng.normal(0, np.sqrt(intra / D), (prompts, group, D))


def averaged(draw, repeats, baseline):
    found = [split_noise(draw(), baseline) for _ in range(repeats)]
    values = np.array([(p.signal, p.inter, p.intra) for p in found])
    return values.mean(axis=0), values.std(axis=0) / np.sqrt(repeats)


def test_parts_are_unbiased_without_a_baseline():
    rng = np.random.default_rng(0)
    mean, error = averaged(lambda: planted(rng, 8, 4), 3000, "none")
    assert np.all(np.abs(mean - [0.5, 2.0, 9.0]) < 3 * error)


def policy_gradients(rng, prompts, group, baseline):
    """Bernoulli policies of D logits a prompt, reward linear in the actions: score a - p, advantages centred within the group."""
    p = np.clip(0.5 + 0.2 * rng.standard_normal((prompts, 1, D)), 0.1, 0.9)
    action = rng.random((prompts, group, D)) < p
    weight = np.linspace(0.2, 1.0, D) + 0.3 * rng.standard_normal((prompts, 1, D))
    reward = (action * weight).sum(-1)
    others = (reward.sum(1, keepdims=True) - reward) / (group - 1)
    advantage = reward - (others if baseline == "leave-one-out" else reward.mean(1, keepdims=True))
    return advantage[..., None] * (action - p)


@pytest.mark.parametrize("baseline", ["leave-one-out", "group"])
@pytest.mark.parametrize("group", [2, 4])
def test_parts_are_unbiased_with_a_baseline(baseline, group):
    """Truth from many prompts: G_b = p (1 - p) w exactly."""
    rng = np.random.default_rng(1)
    p = np.clip(0.5 + 0.2 * rng.standard_normal((400_000, D)), 0.1, 0.9)
    own = p * (1 - p) * (np.linspace(0.2, 1.0, D) + 0.3 * rng.standard_normal((400_000, D)))
    signal = (own.mean(0) ** 2).sum()
    inter = (own**2).sum(-1).mean() - signal
    mean, error = averaged(lambda: policy_gradients(rng, 16, group, baseline), 6000, baseline)
    assert abs(mean[0] - signal) < 3 * error[0]
    assert abs(mean[1] - inter) < 3 * error[1]
    if group == 2:  # left in, the pair covariance lands in the prompts' part
        unit = (group - 1) / group if baseline == "group" else 1.0
        biased, error = averaged(lambda: policy_gradients(rng, 16, group, baseline) / unit, 2000, "none")
        assert biased[1] > inter + 5 * error[1]


def test_noise_of_the_batch_gradient_is_what_the_parts_say():
    rng, prompts, group = np.random.default_rng(2), 16, 4
    batches = np.array([policy_gradients(rng, prompts, group, "leave-one-out") for _ in range(6000)])
    spread = batches.mean(axis=(1, 2)).var(axis=0).sum()
    parts = [split_noise(b, "leave-one-out") for b in batches]
    signal, inter, intra = (np.mean([getattr(p, name) for p in parts]) for name in ("signal", "inter", "intra"))
    pooled = NoiseParts(signal, inter, intra, prompts, group, 1 / 9)
    assert pooled.batch * signal / (prompts * group) == pytest.approx(spread, rel=0.04)


def test_two_batches():
    rng, g, sd = np.random.default_rng(3), np.full(D, 0.2), 1.5
    small, big = ((rng.normal(g, sd / np.sqrt(b), (200_000, D)) ** 2).sum(-1) for b in (8, 64))
    assert two_batch_signal(small, big, 8, 64).mean() == pytest.approx((g**2).sum(), rel=0.02)
    assert two_batch_noise(small, big, 8, 64).mean() == pytest.approx(D * sd**2, rel=0.02)


def test_reuse_raises_the_noise_batch():
    assert reuse_inflation(0, 1e-3, spread=10.0) == 0
    delta = float(reuse_inflation(512, 1e-3, spread=30.0))
    assert 0 < delta < 1
    model = inflated_model(delta, a=1.0, h0=3.0, h1=0.1)
    assert model["h0"] / model["h1"] == pytest.approx(30 * (1 + delta))


def test_importance_weights_inflate_noise_by_that_much():
    rng, v = np.random.default_rng(4), 0.25
    rho = np.exp(rng.normal(-v / 2, np.sqrt(v), 400_000))
    g = rng.standard_normal(400_000)
    assert (rho * g).var() == pytest.approx(1 + float(reuse_inflation(1.0, np.sqrt(v), spread=1.0)), rel=0.02)


def test_reused_completions_have_that_intra_noise():
    rng, v = np.random.default_rng(5), 0.3
    own = np.full(D, 0.5)
    g = own + rng.standard_normal((300_000, D))
    rho = np.exp(rng.normal(-v / 2, np.sqrt(v), 300_000))[:, None]
    delta = float(reuse_inflation(1.0, np.sqrt(v), spread=1.0))
    assert (rho * g).var(axis=0).sum() == pytest.approx(reused_intra(D, (own**2).sum(), 0.0, delta), rel=0.02)
    assert mean_inflation(64, 1e-3, updates_per_rollout=1, spread=10.0) == 0
    assert mean_inflation(64, 1e-3, updates_per_rollout=2, spread=10.0) == pytest.approx(float(reuse_inflation(64, 1e-3, spread=10.0)) / 2)


def test_refusals():
    with pytest.raises(FitError, match="baseline='mean'"):
        split_noise(np.zeros((2, 4, 3)), "mean")
    with pytest.raises(FitError, match="at least two prompts"):
        split_noise(np.zeros((1, 4, 3)))
    with pytest.raises(FitError, match="finite"):
        split_noise(np.full((2, 2, 3), np.nan))
    with pytest.raises(NeverReachedError, match="use more prompts"):
        _ = NoiseParts(-0.1, 1.0, 2.0, 8, 4, 0.0).batch
