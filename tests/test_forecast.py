import numpy as np
import pandas as pd
import pytest

import twoclocks as tc
from experiments.planted import curve_rows, run_row
from twoclocks.errors import FitError
from twoclocks.records import Runs

RNG = np.random.default_rng(0)
SAMPLES = np.arange(1, 201) * 256


def one(rng=0, rate=2e-6, diffusion=1e-6, **columns):
    """One run whose drift meter is a random walk with drift."""
    steps = rate * 256 + np.sqrt(diffusion * 256) * np.random.default_rng(rng).standard_normal(200)
    curve = curve_rows("solo", 64, SAMPLES, np.cumsum(steps), metric="drift_cum_k3").assign(**columns)
    return Runs(pd.DataFrame([run_row(run_id="solo", batch=64)]), curve)


def test_one_run_is_forecast_and_says_what_it_cannot_know():
    clocks = tc.fit(one())
    found = clocks.forecast
    assert clocks.progress is None and "one batch and one learning rate" in clocks.unidentified["failure"]
    assert found.meter == "drift_cum_k3" and found.samples == SAMPLES[-1] and found.samples_left is None
    assert len(found.unknown) == 4 and "no gradient noise is logged" in found.unknown[-1]
    assert "unknown from one run" in str(clocks)


def test_the_rate_is_covered_by_its_interval():
    inside = [low <= 2e-6 <= high for _, low, high in (tc.fit(one(rng=seed, diffusion=1e-8)).forecast.rate for seed in range(120))]
    assert 0.88 <= np.mean(inside) <= 0.99


def test_the_first_passage_is_covered_by_its_interval():
    """The runs go on: when do they cover the threshold, and was it inside the interval?"""
    inside, middle = [], []
    for seed in range(80):
        runs = one(rng=seed, diffusion=2e-8)
        now = float(runs.curves["drift_cum_k3"].iloc[-1])
        found = tc.fit(runs, threshold=now + 0.05).forecast.samples_left
        walk = np.cumsum(2e-6 + np.sqrt(2e-8) * np.random.default_rng(1000 + seed).standard_normal(200_000))
        passed = int(np.argmax(walk >= 0.05))
        assert walk.max() >= 0.05
        inside.append(found[1] <= passed <= found[2])
        middle.append(np.log(found[0] / passed))
    assert 0.85 <= np.mean(inside) <= 1.0
    assert abs(np.median(middle)) < 0.35


def test_a_threshold_already_passed_leaves_nothing():
    assert tc.fit(one(), threshold=-1.0).forecast.samples_left == (0.0, 0.0, 0.0)


def test_gradient_noise_gives_a_local_critical_batch():
    """|G|^2 = 4, tr(Sigma) = 2560: noise scale 640; a batch of 64 sees |G|^2 + tr/B = 44 with noise 40."""
    power = 44 * np.exp(0.1 * RNG.standard_normal(200))
    found = tc.fit(one(grad_power=power, grad_noise=40.0)).forecast
    assert found.noise_batch[1] < 640 < found.noise_batch[2]
    lost = tc.fit(one(grad_power=39.0, grad_noise=40.0)).forecast
    assert np.isnan(lost.noise_batch[0]) and "signal not told from noise" in str(lost)
    assert lost.to_json()["noise_batch"] == [None, None, None]


def test_per_rollout_meters_are_summed():
    runs = one()
    curve = runs.curves.assign(drift_cum_k3=None, drift_k1=0.01, rollout=np.arange(1, 201))
    found = tc.fit(Runs(runs.runs, curve)).forecast
    assert found.meter == "drift_k1 summed over rollouts" and found.value == pytest.approx(2.0)
    assert found.rate[0] == pytest.approx(0.01 / 256)


def test_refusals():
    runs = one()
    with pytest.raises(FitError, match="no drift meter is logged"):
        tc.fit(Runs(runs.runs, runs.curves.assign(drift_cum_k3=None)))
    with pytest.raises(FitError, match="log more often"):
        tc.fit(Runs(runs.runs, runs.curves.iloc[:8]))
    with pytest.raises(FitError, match="name one with run_id"):
        tc.fitting.forecast(Runs(pd.concat([runs.runs, runs.runs.assign(run_id="b")], ignore_index=True), runs.curves))
