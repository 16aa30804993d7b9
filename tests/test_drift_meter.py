"""The meter against literal formulas, and the two clocks along a run."""

import json
import math
import warnings

import numpy as np
import pytest
import torch

from tests import trainers as rig
from tests.trainers import logged
from twoclocks import FailureClock, ProgressClock
from twoclocks import schedule as schedules
from twoclocks.monitor import Monitor, continued, past_stages
from twoclocks.schedule import Schedule, Stage
from twoclocks.timetable import Timetable
from twoclocks.trainers import DriftMeter, ScheduledGRPOTrainer, TwoClocks
from twoclocks.trainers.drift import EDGES, histogram, summary, token_sums


def test_token_metrics_are_their_formulas():
    torch.manual_seed(0)
    log_ratio, mask = 0.3 * torch.randn(6, 5), (torch.rand(6, 5) > 0.2).float()
    advantage = torch.tensor([1.0, -1.0, 0.5, -2.0, 0.0, 3.0])
    sums, largest = token_sums(log_ratio, mask, advantage, (0.2, 0.3))
    found = summary([*sums.tolist(), 0.0, 0.0], float(largest))
    lr, r = log_ratio[mask > 0].numpy(), np.exp(log_ratio[mask > 0].numpy())
    a = advantage[:, None].expand(6, 5)[mask > 0].numpy()
    expected = {
        "drift_abs": np.abs(lr).mean(),
        "drift_k3": (r - 1 - lr).mean(),
        "drift_m2": (lr**2).mean(),
        "ess": r.sum() ** 2 / (len(r) * (r**2).sum()),
        "ratio_max": r.max(),
        "ratio_pos": r[a > 0].mean(),
        "ratio_neg": r[a < 0].mean(),
        "clip_frac_high": ((r > 1.3) & (a > 0)).mean(),
        "clip_frac_low": ((r < 0.8) & (a < 0)).mean(),
    }
    assert found == pytest.approx(expected, rel=1e-5)
    counts = histogram(log_ratio, mask, advantage, torch.tensor(EDGES))
    assert counts.sum(1).tolist() == [(a < 0).sum(), (a > 0).sum()]
    assert counts[1, -1] == ((lr > EDGES[-1]) & (a > 0)).sum()


def test_a_broken_policy_is_not_taken_for_one_without_drift():
    sums, largest = token_sums(torch.tensor([[0.0, float("nan")]]), torch.ones(1, 2), torch.ones(1), (0.2, 0.2))
    assert math.isnan(summary([*sums.tolist(), 0.0, 0.0], float(largest))["drift_k3"])


def test_empty_rows_are_not_measured():
    sums, largest = token_sums(torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2), (0.2, 0.2))
    assert summary([*sums.tolist(), 0.0, 0.0], float(largest)) == {}


@pytest.fixture(scope="module")
def metered(tmp_path_factory):
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path_factory.mktemp("metered"), schedule=schedules.constant(rig.setting(8, lr=3e-3, updates=4), 160),
        fields={"per_device_train_batch_size": 4, "num_generations": 4}, meter=DriftMeter(probe_every=1),
    )  # fmt: skip
    made.train()
    return made


def test_logged_clip_fractions_are_trls_own(metered):
    for ours, theirs in (("twoclocks/clip_frac_high", "clip_ratio/high_mean"), ("twoclocks/clip_frac_low", "clip_ratio/low_mean")):
        # TRL averages micro-batch means, the meter tokens
        assert logged(metered, ours) == pytest.approx(logged(metered, theirs), abs=0.02)
    assert max(logged(metered, "twoclocks/clip_frac_high")) > 0


def test_drift_grows_within_a_rollout_and_starts_anew(metered):
    drift = np.array(logged(metered, "twoclocks/drift_abs")).reshape(-1, 4)
    assert drift[:, 0] == pytest.approx(0, abs=1e-6)
    assert (drift[:, 3] > drift[:, 1]).all()
    assert logged(metered, "twoclocks/inner_step") == [0, 1, 2, 3] * 5
    ends = np.array(logged(metered, "twoclocks/drift_end_abs")).reshape(-1, 4)
    assert (ends > 0).all()  # after the step even the first update shows
    cumulative = logged(metered, "twoclocks/drift_cum_abs")
    assert cumulative[-1] == pytest.approx(drift[:, 3].sum()) and np.all(np.diff(cumulative) >= 0)
    for k in range(4):
        assert len(logged(metered, f"twoclocks/clip_frac_high/inner_{k}")) == 5


def test_parameter_metrics(metered):
    norms, distance = logged(metered, "twoclocks/update_norm"), logged(metered, "twoclocks/distance")
    assert distance[0] == pytest.approx(norms[0])
    assert all(d <= sum(norms[: k + 1]) * (1 + 1e-6) for k, d in enumerate(distance))
    cosines = logged(metered, "twoclocks/update_cos")
    assert len(cosines) == 19 and all(-1 <= c <= 1 for c in cosines) and max(cosines) > 0.5  # momentum
    start = torch.cat([p.detach().flatten() for p in rig.policy().parameters()])
    end = torch.cat([p.detach().flatten() for p in metered.model.parameters()])
    assert distance[-1] == pytest.approx(float((end - start).norm()), rel=1e-5)
    assert logged(metered, "twoclocks/probe_seconds")


def test_histogram_counts_every_token_with_an_advantage(metered):
    for row in metered.state.log_history:
        if "twoclocks/ratio_hist" in row:
            counts = json.loads(row["twoclocks/ratio_hist"])
            assert len(counts) == 2 * (len(EDGES) + 1) and 0 < sum(counts) <= 40


def test_what_is_not_measured_is_absent(tmp_path):
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8, updates=1), 64),
        fields={"per_device_train_batch_size": 4, "num_generations": 4}, meter=DriftMeter(),
    )  # fmt: skip
    made.train()
    for name in ("drift_abs", "update_norm", "drift_end_abs", "ratio_hist"):
        assert not logged(made, f"twoclocks/{name}")
    assert len(logged(made, "twoclocks/samples")) == 8


def test_one_update_a_rollout_is_measured_by_the_probe(tmp_path):
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8, updates=1), 64),
        fields={"per_device_train_batch_size": 4, "num_generations": 4}, meter=DriftMeter(probe_every=2),
    )  # fmt: skip
    made.train()
    ends = logged(made, "twoclocks/drift_end_k3")  # 0 where no group had any variance
    assert len(ends) == 4 and min(ends) >= 0 and sum(e > 0 for e in ends) >= 3
    assert len(logged(made, "twoclocks/update_cos")) == 3  # none before the second probe


def test_rows_of_several_updates_are_token_weighted(tmp_path):
    fields = {"per_device_train_batch_size": 4, "num_generations": 4}
    made = schedules.constant(rig.setting(8, updates=4), 64)
    each = rig.trainer(ScheduledGRPOTrainer, tmp_path / "1", schedule=made, fields=fields)
    each.train()
    both = rig.trainer(ScheduledGRPOTrainer, tmp_path / "4", schedule=made, fields=fields | {"logging_steps": 4})
    both.train()
    counts = [sum(json.loads(h)) for h in logged(each, "twoclocks/ratio_hist")]
    assert sum(json.loads(logged(both, "twoclocks/ratio_hist")[0])) == sum(counts[:4])
    assert logged(both, "twoclocks/drift_abs")[0] == pytest.approx(np.mean(logged(each, "twoclocks/drift_abs")[:4]), rel=0.1)
    assert logged(both, "twoclocks/drift_cum_k3") == pytest.approx(logged(each, "twoclocks/drift_cum_k3")[3::4])


def test_report_backends_get_numbers_alone(tmp_path):
    from transformers import TrainerCallback

    seen = []

    class Backend(TrainerCallback):
        def on_log(self, args, state, control, logs, **kwargs):
            seen.append(dict(logs))

    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8), 32), fields={"per_device_train_batch_size": 4, "num_generations": 4},
        callbacks=[Backend()],
    )  # fmt: skip
    made.train()
    assert len(seen) == 5 and "twoclocks/drift_k3" in seen[0]
    assert all(isinstance(value, int | float) for row in seen[:4] for value in row.values())
    assert len(logged(made, "twoclocks/ratio_hist")) == 4


def test_tensorboard_gets_the_rows(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8), 32),
        fields={"per_device_train_batch_size": 4, "num_generations": 4, "report_to": ["tensorboard"]},
    )  # fmt: skip
    made.train()
    events = EventAccumulator(str(next(tmp_path.rglob("events.out*")).parent))
    events.Reload()
    assert "train/twoclocks/drift_k3" in events.Tags()["scalars"]
    assert [e.value for e in events.Scalars("train/twoclocks/samples")] == [8, 16, 24, 32]


# -- the two clocks -------------------------------------------------------------------------------------------------

PROGRESS = ProgressClock(a=1.0, h0=10.0, h1=0.1, batch_range=(4, 64), drift_range=(1e-5, 1e-2))
FAILURE = FailureClock(1000, 8, 1e-3 / math.sqrt(8), 0.0, -1.0, batch_range=(4, 64), drift_range=(1e-5, 1e-2))


class Fitted:
    """What TwoClocks needs of fitted clocks."""

    metric, gain, warnings, draws = "reward", 0.1, [], {"progress": None, "failure": None}

    def require(self, clock):
        return {"progress": PROGRESS, "failure": FAILURE}[clock]


def test_damage_adds_up_along_a_switch():
    table = Timetable(Schedule((Stage(rig.setting(8, 1e-3), 160), Stage(rig.setting(8, 2e-3), 160))))
    monitor = Monitor(PROGRESS, FAILURE, safety=0.8)
    half, end = monitor.read(table, 20), monitor.read(table, 40)
    assert half.drift_spent == pytest.approx(0.16)
    assert end.drift_spent == pytest.approx(0.16 + 0.32)
    assert half.samples_left == pytest.approx((0.8 - 0.16) * 500)  # at the next rollout's rate
    assert (half.planned_left, end.planned_left) == (160, 0)
    assert half.drift_at_end == pytest.approx(0.48)
    assert half.gain == pytest.approx(160 * float(PROGRESS.per_sample(8, 1e-3 / math.sqrt(8))))
    assert not end.extrapolated


def test_the_warm_up_spends_less():
    warm = Timetable(Schedule((Stage(rig.setting(8, 1e-3), 160),), lr_warmup_samples=160))
    assert Monitor(PROGRESS, FAILURE).read(warm, 20).drift_spent == pytest.approx(0.08)


def test_a_continued_schedule_keeps_the_past():
    table = Timetable(Schedule((Stage(rig.setting(8, 1e-3), 100), Stage(rig.setting(16, 2e-3), 160))))
    rest = schedules.constant(rig.setting(32, 1e-3), 128)
    made = continued(table, 14, rest)
    assert past_stages(table, 14) == [Stage(rig.setting(8, 1e-3), 112)]
    assert made.samples == 112 + 128
    Timetable(made).check_same_past(table, 14)


def test_a_run_warns_once_when_the_failure_clock_runs_out(tmp_path):
    two = TwoClocks(Fitted(), safety=0.8)
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8, lr=1e-2), 96),
        fields={"per_device_train_batch_size": 4, "num_generations": 4}, callbacks=[two],
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.train()
    told = [str(w.message) for w in caught if "failure clock" in str(w.message)]
    assert len(told) == 1 and "lower the learning rate, or stop there" in told[0]
    assert logged(made, "twoclocks/drift_spent")[-1] == pytest.approx(0.96)
    assert logged(made, "twoclocks/samples_left")[0] == pytest.approx((0.8 - 0.08) * 100)


def test_replanning_switches_at_a_border_and_says_why(tmp_path, monkeypatch):
    from twoclocks.trainers import clocks as module

    asked = []

    def planned(clocks, *, samples, safety, accept_misfit):
        asked.append((samples, round(safety, 3)))
        return schedules.constant(rig.setting(16, lr=5e-4), samples, provenance={"reason": "less hazard"})

    monkeypatch.setattr(module, "plan", planned)
    two = TwoClocks(Fitted(), replan=True, replan_every=2)
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8), 160),
        fields={"per_device_train_batch_size": 4, "num_generations": 4, "save_strategy": "steps", "save_steps": 8}, callbacks=[two],
    )  # fmt: skip
    made.train()
    assert asked[0] == (128, 0.8 - 0.032)
    assert logged(made, "learning_rate") == [1e-3] * 4 + [5e-4] * 8
    assert made.samples == 160 and made.state.global_step == 12
    (decision,) = two.decisions
    assert decision["samples"] == 32 and decision["followed"] and decision["reason"] == "less hazard"
    saved = json.loads((tmp_path / "checkpoint-8/twoclocks.json").read_text())
    assert saved["schedule"]["provenance"]["replans"] == [decision]
    # A resume with the schedule that the run was started with goes on with the plan, and remembers why
    again_two = TwoClocks(Fitted(), replan=True, replan_every=2)
    again = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8), 160), fields={"per_device_train_batch_size": 4, "num_generations": 4},
        callbacks=[again_two],
    )  # fmt: skip
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    assert again.state.global_step == 12 and logged(again, "learning_rate") == logged(made, "learning_rate")
    assert again_two.decisions == two.decisions


def test_a_plan_that_spends_its_budget_to_the_last_is_no_alarm(tmp_path):
    two = TwoClocks(Fitted(), safety=0.064)
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8), 64), fields={"per_device_train_batch_size": 4, "num_generations": 4}
    )
    made.add_callback(two)  # also after the trainer was built
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.train()
    assert logged(made, "twoclocks/drift_spent")[-1] == pytest.approx(0.064)


def test_a_plan_that_cannot_be_followed_is_kept_on_record(tmp_path, monkeypatch):
    from twoclocks.trainers import clocks as module

    monkeypatch.setattr(module, "plan", lambda clocks, *, samples, **_: schedules.constant(rig.setting(10), samples, provenance={"reason": "odd"}))
    two = TwoClocks(Fitted(), replan=True, replan_every=2)
    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path, schedule=schedules.constant(rig.setting(8), 64), fields={"per_device_train_batch_size": 4, "num_generations": 4},
        callbacks=[two],
    )  # fmt: skip
    made.train()
    assert made.state.global_step == 8
    assert not two.decisions[0]["followed"] and "batch 10 is not a multiple" in two.decisions[0]["reason"]
