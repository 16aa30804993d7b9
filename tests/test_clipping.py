import math

import numpy as np
import pytest

from twoclocks.clipping import delay, observed_share, pull_back, survival, surviving_share, thresholds
from twoclocks.errors import SettingError

WORLD = {"clip": (0.2, 0.2), "drift": 1.0, "spread": 30.0}


def share(batch, updates, c=2e-4, **changes):
    return surviving_share(batch, c, updates_per_rollout=updates, **WORLD | changes)


def test_share_falls_with_batch_at_fixed_updates_and_rises_in_whole_multiples_at_fixed_rollout():
    batches = 2 ** np.arange(4, 13)
    fixed_updates = [share(b, 4) for b in batches]
    fixed_rollout = [share(b, 4096 // b) for b in batches]
    assert np.all(np.diff(fixed_updates) < 0)
    assert np.all(np.diff(fixed_rollout) > 0)
    assert [share(b, 1) for b in batches] == [1.0] * len(batches)


def test_share_is_not_monotone_against_the_drift():
    """m < 0: large displacements are in the direction that a clip never stops."""
    shares = [share(b, 2, c=1e-2, drift=-1.0, spread=8.0) for b in (4, 18, 128)]
    assert shares[1] < shares[0] and shares[1] < shares[2]


def test_a_wider_range_keeps_more():
    assert share(512, 4, clip=(0.2, 0.2)) < share(512, 4, clip=(0.2, 0.28)) < share(512, 4, clip=(0.5, 5.0)) < share(512, 4, clip=None) == 1.0
    # The lower bound acts on negative advantages alone, the upper on positive ones
    assert share(512, 4, clip=(0.2, 5.0), positive=1.0) == share(512, 4, clip=(0.9, 5.0), positive=1.0)
    assert thresholds((1.0, 0.2))[0] == math.inf


def test_formula_against_drawn_ratios():
    rng, c, batch, updates, drift, spread = np.random.default_rng(0), 2e-4, 512, 4, 5.0, 30.0
    k = rng.integers(0, updates, 200_000)
    y = rng.normal(k * c * batch * drift, np.sqrt(k * batch) * c * spread)
    advantage = rng.choice([-1.0, 1.0], len(y))
    drawn = observed_share(np.sign(advantage) * y, advantage, (0.2, 0.28))
    assert surviving_share(batch, c, updates_per_rollout=updates, clip=(0.2, 0.28), drift=drift, spread=spread) == pytest.approx(drawn, abs=0.003)


def test_observed_share_counts_each_sign_at_its_own_bound():
    log_ratio, advantage = np.log([1.3, 1.3, 0.7, 0.7, 1.0, 5.0]), np.array([1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    assert observed_share(log_ratio, advantage, (0.2, 0.2)) == pytest.approx(3 / 5)
    assert observed_share(log_ratio, advantage, (0.2, 0.4)) == pytest.approx(4 / 5)
    assert observed_share(log_ratio, advantage, (0.2, 0.2), weight=[8, 0, 0, 0, 2, 99]) == pytest.approx(0.2)
    assert observed_share(log_ratio, advantage, None) == 1.0


def test_delay_and_pull():
    assert delay(0.25, "sgd") == 4 and delay(0.25) == 2
    assert delay(0.25, "sgd", "diffusion") == 4 and delay(0.25, "adam", "diffusion") == 1
    assert pull_back(0.4, 1 / 64) == pytest.approx(0.1)
    assert survival([0.0], 1e-3, threshold=0.2, drift=0.0, spread=1.0) == pytest.approx([1.0])


def test_units():
    """Scale c by k, and drift and spread per unit of c by 1/k: the share stays."""
    assert share(256, 4, c=4e-4, drift=0.5, spread=15.0) == pytest.approx(share(256, 4, c=2e-4))


def test_refusals():
    with pytest.raises(SettingError, match="updates_per_rollout=0"):
        share(64, 0)
    with pytest.raises(SettingError, match="must be whole"):
        share(64, 2.5)
    with pytest.raises(SettingError, match="spread=0"):
        share(64, 4, spread=0)
    with pytest.raises(SettingError, match=r"clip=\(0, 0\)"):
        thresholds((0, 0))
    with pytest.raises(SettingError, match="optimizer='SGD'"):
        delay(0.5, "SGD")
    with pytest.raises(SettingError, match="no completion has an advantage"):
        observed_share([0.1, 0.2], [0.0, 0.0], (0.2, 0.2))
