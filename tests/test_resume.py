"""Resuming to the same bits, rescheduling, and what a checkpoint must survive."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests import trainers as rig
from tests.trainers import logged, scheduled, weights
from twoclocks import schedule as schedules
from twoclocks.errors import ScheduleError, SettingError
from twoclocks.schedule import Schedule, Stage
from twoclocks.timetable import Timetable
from twoclocks.trainers import DriftMeter, checkpoint

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of the misaligned schedule that keeps a checkpoint of every update."""
    folder = tmp_path_factory.mktemp("whole")
    made = scheduled(folder, rig.misaligned(), {"save_strategy": "steps", "save_steps": 1}, meter=DriftMeter(probe_every=3))
    made.train()
    return folder, weights(made), made.state.log_history


def resumed(folder, tmp_path, step, schedule=None, **kwargs):
    made = scheduled(tmp_path, schedule or rig.misaligned(), {"save_strategy": "no"}, meter=DriftMeter(probe_every=3), **kwargs)
    made.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
    return made


def test_resuming_is_exact_at_and_between_rollout_borders(whole, tmp_path):
    folder, end, history = whole
    table = Timetable(rig.misaligned())
    kinds = set()
    for step in (1, 13, 17, 20):
        kinds.add(table.inner(step) > 0)
        made = resumed(folder, tmp_path / str(step), step)
        assert torch.equal(weights(made), end), step
        for key in ("reward", "learning_rate", "epoch", *(f"twoclocks/{n}" for n in ("samples", "drift_k3", "drift_cum_k3", "distance", "update_cos"))):
            assert logged(made, key) == [row[key] for row in history if key in row and "train_runtime" not in row], (step, key)
    assert kinds == {True, False}


def test_a_schedule_may_change_after_its_position_and_not_before(whole, tmp_path):
    folder = whole[0]
    *past, last = rig.misaligned().stages
    later = Schedule((*past, Stage(rig.setting(16, 3e-3, 1), 96)))
    step = next(r.update for r in Timetable(rig.misaligned()).rollouts if r.samples == 160)
    made = resumed(folder, tmp_path / "later", step, later)
    assert made.state.global_step == step + 6 and made.samples == 256
    assert logged(made, "learning_rate")[-6:] == [3e-3] * 6
    earlier = Schedule((Stage(rig.setting(4, 5e-4, 4), 48), *past[1:], last))
    with pytest.raises(ScheduleError, match="differs from the one this run followed at 0 completions"):
        resumed(folder, tmp_path / "earlier", step, earlier)


def test_incomplete_checkpoints_are_never_resumed_from(whole, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(whole[0], copy)
    (copy / "checkpoint-21" / checkpoint.MARKER).unlink()
    assert checkpoint.newest(copy).name == f"checkpoint-{Timetable(rig.misaligned()).updates}"
    with pytest.raises(ScheduleError, match="not a complete checkpoint"):
        resumed(copy, tmp_path / "x", 21)
    (copy / "checkpoint-1" / "rollout-0.safetensors").unlink()
    with pytest.raises(ScheduleError, match="lies inside a rollout"):
        resumed(copy, tmp_path / "y", 1)
    with pytest.raises(ScheduleError, match="no complete checkpoint"):
        scheduled(tmp_path / "z", rig.misaligned()).train(resume_from_checkpoint=True)
    with pytest.raises(ScheduleError, match="per_device_train_batch_size=4, resumed with 2"):
        made = scheduled(tmp_path / "w", rig.misaligned(), rig.setting(4, updates=4).to_trl(per_device=2))
        made.train(resume_from_checkpoint=str(copy / "checkpoint-2"))


def test_a_rewound_run_sets_the_abandoned_future_aside(whole, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(whole[0], copy)
    made = scheduled(copy, rig.misaligned(), {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}, meter=DriftMeter(probe_every=3))
    made.train(resume_from_checkpoint=str(copy / "checkpoint-19"))
    last = Timetable(rig.misaligned()).updates
    assert [p.name for p in checkpoint.complete(copy)] == [f"checkpoint-{last - 1}", f"checkpoint-{last}"]
    assert torch.equal(weights(made), whole[1])
    checkpoint.supersede(copy, last - 1)  # what lies past a resume is no longer taken for the newest, and is kept
    assert checkpoint.newest(copy).name == f"checkpoint-{last - 1}"
    assert (copy / f"checkpoint-{last}" / checkpoint.SUPERSEDED).exists() and (copy / f"checkpoint-{last}/model.safetensors").exists()


def test_an_interrupted_rewrite_is_not_complete(whole, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(whole[0] / "checkpoint-5", copy / "checkpoint-5")
    made = scheduled(copy, rig.misaligned(), {"save_strategy": "steps", "save_steps": 5})

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    made._save_optimizer_and_scheduler = interrupted
    with pytest.raises(KeyboardInterrupt):
        made.train()
    assert not checkpoint.complete(copy)


def test_the_best_checkpoint_outlives_the_limit(tmp_path):
    for k in (2, 4, 6, 8):
        (tmp_path / f"checkpoint-{k}").mkdir()
        checkpoint.finish(tmp_path / f"checkpoint-{k}", {})
    checkpoint.rotate(tmp_path, 2, str(tmp_path / "checkpoint-2"))
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["checkpoint-2", "checkpoint-6", "checkpoint-8"]


def test_a_finished_run_may_be_resumed_and_extended(tmp_path):
    short = schedules.constant(rig.setting(8, updates=4), 48)  # the second rollout is used in part
    fields = {"save_strategy": "steps", "save_steps": 6}
    made = scheduled(tmp_path, short, fields)
    made.train()
    again = scheduled(tmp_path, short, fields)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6 and torch.equal(weights(made), weights(again))
    longer = schedules.constant(rig.setting(8, updates=4), 96)
    extended, whole = scheduled(tmp_path, longer, fields), scheduled(tmp_path / "whole", longer)
    extended.train(resume_from_checkpoint=True)
    torch.manual_seed(extended.args.seed)
    whole = scheduled(tmp_path / "whole", longer)
    whole.train()
    assert extended.state.global_step == 12 and torch.equal(weights(extended), weights(whole))


def test_a_used_trainer_resumes_as_a_new_one(whole, tmp_path):
    folder, end, _ = whole
    made = scheduled(tmp_path, rig.misaligned(), meter=DriftMeter(probe_every=3))
    right = made.training_step

    def step(*args, **kwargs):
        if made.state.global_step == 7:
            raise KeyboardInterrupt
        return right(*args, **kwargs)

    made.training_step = step
    with pytest.raises(KeyboardInterrupt):
        made.train()
    made.training_step = right
    made.train(resume_from_checkpoint=str(folder / "checkpoint-17"))
    assert torch.equal(weights(made), end)


def rescheduled(tmp_path, at, schedule, **fields):
    from transformers import TrainerCallback

    class Switch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == at:
                made.reschedule(schedule)

    made = scheduled(tmp_path, schedules.constant(rig.setting(8), 64), fields, callbacks=[Switch()])
    made.train()
    return made


def test_rescheduling_may_make_a_run_longer_or_end_it(tmp_path):
    one = rig.setting(8)
    longer = rescheduled(tmp_path / "a", 4, Schedule((Stage(one, 32), Stage(rig.setting(4, 5e-4), 64))))
    assert longer.state.global_step == 4 + 16 and longer.samples == 96
    assert logged(longer, "learning_rate") == [1e-3] * 4 + [5e-4] * 16
    assert rescheduled(tmp_path / "b", 4, schedules.constant(one, 32)).state.global_step == 4
    inside = rescheduled(tmp_path / "c", 3, Schedule((Stage(one, 32), Stage(rig.setting(16), 64))))
    assert inside.state.global_step == 4 + 4
    with pytest.raises(ScheduleError, match="differs from the one this run followed"):
        rescheduled(tmp_path / "d", 4, schedules.constant(rig.setting(16), 64))
    with pytest.raises(SettingError, match="prompts are fewer"):
        rescheduled(tmp_path / "e", 4, Schedule((Stage(one, 32), Stage(rig.setting(2048), 8192))))


def test_the_optimizers_rate_is_the_timetables_whatever_the_scheduler_counts(tmp_path):
    made = scheduled(tmp_path, rig.misaligned())
    seen, right = [], made._compute_loss

    def compute(model, inputs):
        seen.append((made.state.global_step, made.optimizer.param_groups[0]["lr"]))
        if made.state.global_step == 3:
            made.lr_scheduler.last_epoch -= 2  # as where steps are skipped for overflow
        return right(model, inputs)

    made._compute_loss = compute
    made.train()
    assert all(lr == made.timetable.lr(update) for update, lr in seen)


def test_old_checkpoints_go_once_the_new_one_is_complete(tmp_path):
    made = scheduled(tmp_path, schedules.constant(rig.setting(8), 64), {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2})
    made.train()
    assert [p.name for p in checkpoint.complete(tmp_path)] == ["checkpoint-7", "checkpoint-8"]
    assert made.args.save_total_limit == 2


def script(folder, resume, save_steps=1, prefix=()):
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, *prefix, str(ROOT / "tests/trainers.py"), str(folder), resume, str(save_steps)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(process):
    out = process.communicate()[0].decode()
    assert process.returncode == 0, out[-3000:]


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    """Kill -9 at ten seeded moments, during checkpoint writes among them; every attempt goes on from the newest complete checkpoint."""
    import random

    whole = tmp_path / "whole"
    whole.mkdir()
    start = time.perf_counter()
    finished(script(whole, "fresh"))
    whole_seconds = time.perf_counter() - start
    rows = [json.loads(line) for line in (whole / "rows.jsonl").read_text().splitlines()]
    draw, cut = random.Random(0), tmp_path / "cut"
    cut.mkdir()
    killed = during_write = 0
    while killed < 10:
        resume = "resume" if list(checkpoint.complete(cut / "run")) else "fresh"
        process = script(cut, resume)
        before = len(checkpoint.complete(cut / "run"))
        deadline = time.perf_counter() + 3 * whole_seconds
        # Wait for one more checkpoint to be begun, then strike within the next write or the update after it
        while time.perf_counter() < deadline and process.poll() is None and len(list((cut / "run").glob("checkpoint-*"))) <= before + killed % 2:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.06))
        if process.poll() is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed += 1
        during_write += len(list((cut / "run").glob("checkpoint-*"))) > len(checkpoint.complete(cut / "run"))
    assert killed == 10 and during_write >= 1
    finished(script(cut, "resume"))
    assert torch.equal(torch.load(whole / "final-0.pt", weights_only=True), torch.load(cut / "final-0.pt", weights_only=True))
    # Rows of a redone update replace the killed attempt's: none is missing, and the last word on each is the whole run's
    last = {row["update"]: row for row in map(json.loads, (cut / "rows.jsonl").read_text().splitlines())}
    assert sorted(last) == [row["update"] for row in rows]
    for row in rows:
        assert last[row["update"]].get("twoclocks/drift_k3") == row.get("twoclocks/drift_k3")
        assert last[row["update"]]["grad_norm"] == row["grad_norm"]


@pytest.mark.slow
def test_two_processes_resume_to_the_same_bits_inside_a_rollout(tmp_path):
    import shutil

    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir(), cut.mkdir()
    finished(script(whole, "fresh", 1, launch))
    table = Timetable(rig.misaligned())
    inside = next(k for k in range(5, table.updates) if table.inner(k) > 0)
    shutil.copytree(whole / f"run/checkpoint-{inside}", cut / f"run/checkpoint-{inside}")
    finished(script(cut, "resume", 1, launch))
    for rank in (0, 1):
        assert torch.equal(*(torch.load(folder / f"final-{rank}.pt", weights_only=True) for folder in (whole, cut)))


@pytest.mark.slow
def test_two_processes_follow_misaligned_switches_alike(tmp_path):
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir(), one.mkdir()
    finished(script(two, "fresh", 1000, ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")))
    ranks = [torch.load(two / f"final-{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert torch.equal(*ranks)
    rows = [json.loads(line) for line in (two / "rows.jsonl").read_text().splitlines()]
    table = Timetable(rig.misaligned())
    assert [row["twoclocks/samples"] for row in rows] == [table.samples_before(k + 1) for k in range(table.updates)]
    assert [row["learning_rate"] for row in rows] == pytest.approx([table.lr(k) for k in range(table.updates)])
