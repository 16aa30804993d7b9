import math

import pytest

from twoclocks import Setting
from twoclocks.errors import SettingError


def test_derived_batch_numbers():
    s = Setting(batch=128, lr=2e-6, group=8, updates_per_rollout=4)
    assert (s.rollout, s.prompts) == (512, 64)
    assert s.drift_rate == pytest.approx(2e-6 / math.sqrt(128))


@pytest.mark.parametrize(("exponent", "drift"), [(0.5, 1.0), (0.0, 1 / 4), (1.0, 4.0)])
def test_scaling_rules_move_the_drift_rate_as_named(exponent, drift):
    s = Setting(batch=32, lr=2e-6)
    assert s.scaled(512, exponent).drift_rate / s.drift_rate == pytest.approx(drift)


def test_at_drift_rate_inverts_drift_rate():
    assert Setting(batch=512, lr=1.0).at_drift_rate(1e-6).drift_rate == pytest.approx(1e-6)


@pytest.mark.parametrize("clip", [(0.2, 0.28), None])
@pytest.mark.parametrize(("per_device", "processes"), [(None, 1), (16, 1), (16, 4)])
def test_trl_fields_round_trip(clip, per_device, processes):
    s = Setting(batch=256, lr=3e-6, group=8, updates_per_rollout=4, clip=clip)
    assert Setting.from_trl(s.to_trl(per_device=per_device, processes=processes), processes=processes) == s


def test_trl_fields_are_trl_fields():
    from dataclasses import fields

    from trl import GRPOConfig

    assert set(Setting(batch=64, lr=1e-6).to_trl()) <= {f.name for f in fields(GRPOConfig)}


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"batch": 0}, "batch=0"),
        ({"batch": 32.0}, "whole number"),
        ({"lr": "2e-6"}, "2.0e-6"),
        ({"lr": float("nan")}, "positive, finite"),
        ({"group": 1}, "no advantage"),
        ({"group": 7}, "nearest legal rollouts are 28 or 35"),
        ({"clip": (0.0, 0.2)}, "0 < low"),
        ({"clip": 0.2}, "must be"),
    ],
)
def test_illegal_settings_say_the_rule_and_the_remedy(bad, says):
    with pytest.raises(SettingError, match=says):
        Setting(**{"batch": 32, "lr": 1e-6, **bad})


def test_per_device_must_divide_the_batch():
    with pytest.raises(SettingError, match="per_device=24"):
        Setting(batch=64, lr=1e-6).to_trl(per_device=24)


def test_from_trl_refuses_what_it_cannot_describe():
    fields = Setting(batch=64, lr=1e-6).to_trl(per_device=16)
    with pytest.raises(SettingError, match="num_iterations"):
        Setting.from_trl({**fields, "num_iterations": 2})
    with pytest.raises(SettingError, match="straddle"):
        Setting.from_trl({**fields, "steps_per_generation": 6})
