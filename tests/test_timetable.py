import pytest

from twoclocks import schedule as schedules
from twoclocks.errors import ScheduleError
from twoclocks.schedule import Schedule, Stage
from twoclocks.setting import Setting
from twoclocks.timetable import Timetable


def setting(batch, updates=4, lr=1e-6, group=8):
    return Setting(batch=batch, lr=lr, group=group, updates_per_rollout=updates)


def test_a_constant_schedule_is_whole_rollouts():
    table = Timetable(schedules.constant(setting(32), 512))
    assert (table.updates, table.samples, len(table.rollouts)) == (16, 512, 4)
    assert [table.inner(k) for k in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [table.samples_before(k) for k in (0, 5, 16)] == [0, 160, 512]
    assert [r.prompts for r in table.rollouts] == [0, 16, 32, 48]
    assert table.switches() == []


def test_switches_wait_for_the_end_of_the_rollout():
    table = Timetable(schedules.sqrt_switch(setting(32), 128, 200, 1200))
    (switch,) = table.switches()
    assert (switch.samples, switch.update) == (256, 8)
    assert switch.setting.batch == 128 and switch.setting.drift_rate == pytest.approx(setting(32).drift_rate)
    # The last rollout of 512 has room for three of its four updates
    assert [r.updates for r in table.rollouts] == [4, 4, 4, 3]
    assert table.samples == 256 + 7 * 128 <= 1200


def test_nothing_is_begun_that_would_end_past_the_schedule():
    table = Timetable(schedules.constant(setting(32), 100))
    assert (table.updates, table.samples) == (3, 96)
    with pytest.raises(ScheduleError, match="updates 0 to 2"):
        table.rollout(3)


def test_lr_is_warmed_up_by_samples_alike_at_every_batch():
    for batch in (16, 64):
        made = schedules.constant(setting(batch, lr=1.0), 1024, lr_warmup_samples=512)
        table = Timetable(made)
        rates = [table.lr(k) for k in range(table.updates)]
        assert sum(rates) * batch == pytest.approx(512 / 2 + 512)
        assert rates == [made.lr(table.samples_before(k)) for k in range(table.updates)]


def test_the_past_may_not_change():
    before = Timetable(Schedule((Stage(setting(32), 256), Stage(setting(64), 512))))
    later = Timetable(Schedule((Stage(setting(32), 256), Stage(setting(128), 512))))
    later.check_same_past(before, 8)
    with pytest.raises(ScheduleError, match="at 256 completions, and 320 are trained"):
        later.check_same_past(before, 9)
    with pytest.raises(ScheduleError, match="at 0 completions"):
        Timetable(Schedule((Stage(setting(32), 768),), lr_warmup_samples=64)).check_same_past(before, 1)
    with pytest.raises(ScheduleError, match="became None"):
        Timetable(schedules.constant(setting(32), 128)).check_same_past(before, 5)
