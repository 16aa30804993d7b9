import json

import numpy as np
import pytest

import twoclocks as tc
from twoclocks.errors import ScheduleError

FIRST = tc.Setting(batch=256, lr=1e-5, group=8, updates_per_rollout=4)


def test_a_schedule_is_a_pure_function_of_samples():
    schedule = tc.sqrt_switch(FIRST, 1024, at=49_152, samples=131_072)
    assert schedule.samples == 131_072
    assert schedule(0) == schedule(49_151) == FIRST
    assert schedule(49_152).batch == schedule(131_071).batch == 1024
    for outside in (-1, 131_072):
        with pytest.raises(ScheduleError, match="covers 0 <= samples"):
            schedule(outside)


def test_constructors_move_the_drift_rate_as_named():
    c = FIRST.drift_rate
    assert tc.sqrt_switch(FIRST, 1024, 4096, 8192)(4096).drift_rate == pytest.approx(c)
    assert tc.fixed_lr_switch(FIRST, 1024, 4096, 8192)(4096).drift_rate == pytest.approx(c / 2)
    doubled = tc.seesaw(FIRST, 4096, 8192)(4096)
    assert (doubled.batch, doubled.drift_rate) == (512, pytest.approx(c / 2))


@pytest.mark.parametrize("batch", [32, 128, 512, 2048])
def test_warm_up_spends_the_same_lr_per_sample_at_every_batch(batch):
    warmup = 8192
    schedule = tc.constant(tc.Setting(batch=batch, lr=1.0), 16_384, lr_warmup_samples=warmup)
    lrs = np.array([schedule.lr(n) for n in range(0, warmup, batch)])
    assert (lrs * batch).sum() == pytest.approx(warmup / 2)
    assert schedule.lr(warmup) == 1.0


def test_json_round_trip_keeps_everything(tmp_path):
    schedule = tc.seesaw(tc.Setting(batch=64, lr=1e-6, clip=None), 4096, 8192, lr_warmup_samples=512, provenance={"why": "test"})
    schedule.save(tmp_path / "s.json")
    assert tc.Schedule.load(tmp_path / "s.json") == schedule
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda d: d.update(schema_version=2), "schema_version"),
        (lambda d: d["stages"].clear(), "stages"),
        (lambda d: d["stages"][0]["setting"].pop("lr"), "lr"),
        (lambda d: d["stages"][0]["setting"].update(batch="64"), "batch"),
        (lambda d: d["stages"][0]["setting"].update(group=7), "nearest legal"),
        (lambda d: d.update(extra=1), "extra"),
    ],
)
def test_damaged_schedules_are_refused_by_field(tmp_path, damage, says):
    data = tc.constant(FIRST, 8192).to_json()
    data = json.loads(json.dumps(data))
    damage(data)
    (tmp_path / "s.json").write_text(json.dumps(data))
    with pytest.raises(ScheduleError, match=says) as error:
        tc.Schedule.load(tmp_path / "s.json")
    assert "s.json" in str(error.value)


def test_unreadable_files_and_empty_stages_are_refused(tmp_path):
    with pytest.raises(ScheduleError, match="not a readable"):
        tc.Schedule.load(tmp_path / "none.json")
    with pytest.raises(ScheduleError, match="at least one stage"):
        tc.Schedule(())
    with pytest.raises(ScheduleError, match="less than one update"):
        tc.constant(FIRST, 255)


def test_presets_load_and_say_where_they_came_from():
    from importlib.resources import files

    presets = [p for p in files("twoclocks").joinpath("presets").iterdir() if p.name.endswith(".json") and p.name != "refused.json"]
    assert presets
    for preset in presets:
        schedule = tc.Schedule.from_json(json.loads(preset.read_text()), preset.name)
        assert schedule.provenance["run_ids"]
