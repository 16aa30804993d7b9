"""A wrong shipped formula does not pass: each is broken in sign, factor and exponent, and the proof that names it must fail."""

import pytest
from scipy import stats

from theory import clipping as clipping_theory
from theory import (
    critical_batch,
    failure_laws,
    first_passage,
    gradient_noise,
    local_model,
    optimizer_memory,
    planner,
    saturation,
)
from theory import trajectory as trajectory_theory
from theory.result import ProofError
from twoclocks import clipping, failure, noise, program, progress, trajectory

FORMULAS = [
    (progress, "per_update", local_model),
    (progress, "per_sample", local_model),
    (progress, "critical_batch", critical_batch),
    (progress, "relative_critical_batch", critical_batch),
    (progress, "best_drift_rate", critical_batch),
    (progress, "saturation", saturation),
    (progress, "saturation_batch", saturation),
    (progress, "saturated_per_sample", saturation),
    (progress, "memory_samples", optimizer_memory),
    (progress, "momentum_lag", optimizer_memory),
    (progress, "momentum_variance", optimizer_memory),
    (progress, "decay_of_half_life", optimizer_memory),
    (trajectory, "contraction", trajectory_theory),
    (trajectory, "mean_after", trajectory_theory),
    (trajectory, "covariance_after", trajectory_theory),
    (trajectory, "noise_floor", trajectory_theory),
    (trajectory, "relative_samples", trajectory_theory),
    (failure, "samples_to_failure", failure_laws),
    (failure, "mean_passage", first_passage),
    (failure, "peclet", first_passage),
    (clipping, "bound_in_sds", clipping_theory),
    (clipping, "surviving_share", clipping_theory),
    (clipping, "delay", clipping_theory),
    (clipping, "pull_back", clipping_theory),
    (program, "switch_samples", planner),
    (program, "most_progress", planner),
    (program, "fewest_seconds", planner),
    (noise, "two_batch_signal", gradient_noise),
    (noise, "two_batch_noise", gradient_noise),
    (noise, "noise_batch", gradient_noise),
    (noise, "reuse_inflation", gradient_noise),
    (noise, "reused_intra", gradient_noise),
    (noise, "mean_inflation", gradient_noise),
]
BREAKS = {"sign": lambda value: -value, "factor": lambda value: 2 * value, "exponent": lambda value: value**2}


@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize(("module", "name", "proof"), FORMULAS, ids=[f"{m.__name__.split('.')[-1]}.{n}" for m, n, _ in FORMULAS])
def test_a_broken_formula_is_caught_by_its_proof(monkeypatch, module, name, proof, how):
    right = getattr(module, name)

    monkeypatch.setattr(module, name, lambda *args, **kwargs: BREAKS[how](right(*args, **kwargs)))
    with pytest.raises(ProofError, match=name):
        proof.derive()


def of_first_passage(drift, diffusion, distance):
    return stats.invgauss(2 / failure.peclet(drift, diffusion, distance), scale=distance**2 / diffusion)


def of_scale_adam(k, *, lr, betas, eps):
    return {"lr": lr * k**0.5, "betas": tuple(b**k for b in betas), "eps": eps / k**0.5}


OTHERS = [
    (failure, "first_passage", of_first_passage, first_passage),
    (progress, "scale_adam", of_scale_adam, optimizer_memory),
    (progress, "scale_adam", lambda k, *, lr, betas, eps: {"lr": lr * k, "betas": betas, "eps": eps}, optimizer_memory),
    (noise, "pair_covariance", lambda group, baseline: 0, gradient_noise),
    (noise, "pair_covariance", lambda group, baseline: 1 / (group - 1), gradient_noise),
    (noise, "inflated_model", lambda delta, *, a, h0, h1: {"a": a / (1 + delta), "h0": h0, "h1": h1 / (1 + delta)}, gradient_noise),
    (noise, "inflated_model", lambda delta, *, a, h0, h1: {"a": a * (1 + delta) ** -0.5, "h0": h0, "h1": h1}, gradient_noise),
    (noise, "split_parts", lambda q1, q2, q3, p, k, kappa, z: (q3 / (p * k) ** 2, q2, q1), gradient_noise),
    (clipping, "thresholds", lambda clip: (float("inf"), float("inf")) if clip is None else clip, clipping_theory),
]


@pytest.mark.parametrize(("module", "name", "wrong", "proof"), OTHERS)
def test_a_wrong_shipped_function_does_not_pass(monkeypatch, module, name, wrong, proof):
    monkeypatch.setattr(module, name, wrong)
    with pytest.raises(ProofError, match=name):
        proof.derive()


@pytest.mark.parametrize(
    ("law", "wrong"),
    [("drift", (0.0, -2.0)), ("drift", (0.5, -1.0)), ("diffusion", (0.0, -1.0)), ("constant step", (-0.5, -1.0)), ("constant step", (0.0, -1.0))],
)
def test_a_wrong_exponent_does_not_pass(monkeypatch, law, wrong):
    monkeypatch.setitem(failure.LAWS, law, wrong)
    with pytest.raises(ProofError, match=law):
        failure_laws.derive()


def test_a_wrong_constant_does_not_pass(monkeypatch):
    monkeypatch.setattr(trajectory, "PARITY", 1.3)
    with pytest.raises(ProofError, match="PARITY"):
        trajectory_theory.derive()
    monkeypatch.undo()
    monkeypatch.setitem(trajectory.MEAN_STEP, "sign", 1.0)
    with pytest.raises(ProofError, match="MEAN_STEP"):
        trajectory_theory.derive()


@pytest.mark.parametrize(("name", "part"), [("modes", 0), ("moments", 0), ("moments", 1), ("samples_to_loss", None)])
def test_a_wrong_world_does_not_pass(monkeypatch, name, part):
    right = getattr(trajectory.Quadratic, name)

    def broken(self, *args):
        value = right(self, *args)
        return 1.01 * value if part is None else tuple(x * 1.01 if k == part else x for k, x in enumerate(value))

    monkeypatch.setattr(trajectory.Quadratic, name, broken)
    with pytest.raises(ProofError, match="Quadratic"):
        trajectory_theory.derive()
