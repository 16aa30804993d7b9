import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from trl import GRPOTrainer

from tests import trainers as rig
from twoclocks import schedule as schedules
from twoclocks.errors import ScheduleError, SettingError
from twoclocks.schedule import Schedule, Stage
from twoclocks.timetable import Timetable
from twoclocks.trainers import DriftMeter, ScheduledGRPOTrainer, checkpoint

ROOT = Path(__file__).parents[1]
LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"]


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def stock(folder, fields, **kwargs):
    return rig.trainer(GRPOTrainer, folder, fields={"num_generations": 4, "learning_rate": 1e-3, "lr_scheduler_type": "constant"} | fields, **kwargs)


def scheduled(folder, schedule, fields=None, **kwargs):
    return rig.trainer(
        ScheduledGRPOTrainer, folder, schedule=schedule, fields={"per_device_train_batch_size": 4, "num_generations": 4} | (fields or {}), **kwargs
    )


def logged(trainer, key):
    return [row[key] for row in trainer.state.log_history if key in row and "train_runtime" not in row]


# -- equivalence with TRL -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_a_constant_schedule_is_the_stock_trainer_to_the_last_bit(tmp_path, loss):
    high = 4.0 if loss == "cispo" else 0.2
    plain = stock(
        tmp_path / "a",
        {
            "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "steps_per_generation": 8, "max_steps": 20, "loss_type": loss,
            "epsilon": 0.2, "epsilon_high": 1 + high if loss == "cispo" else high,
        },
    )  # fmt: skip
    plain.train()
    made = scheduled(tmp_path / "b", schedules.constant(rig.setting(16, clip=(0.2, high)), 320), {"loss_type": loss}, meter=DriftMeter(probe_every=3))
    made.train()
    assert made.state.global_step == plain.state.global_step == 20
    assert torch.equal(weights(plain), weights(made))
    for key in ("reward", "grad_norm", "learning_rate", "loss", "clip_ratio/high_mean" if loss != "cispo" else "cispo_clip_ratio"):
        assert logged(plain, key) == logged(made, key), key


def test_one_update_a_rollout_equals_the_stock_trainer_but_for_rounding(tmp_path):
    """TRL leaves the rollout's log-probabilities out there; ours are recomputed, so the ratio is 1 up to rounding."""
    plain = stock(tmp_path / "a", {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "max_steps": 20})
    plain.train()
    made = scheduled(tmp_path / "b", schedules.constant(rig.setting(16, updates=1), 320))
    made.train()
    assert torch.allclose(weights(plain), weights(made), atol=2e-4)
    assert logged(made, "reward") == pytest.approx(logged(plain, "reward"), abs=0.05)


def test_batch_layouts_agree(tmp_path):
    """1x8, 2x4, 4x2 and 8x1 micro-batches of one update differ by rounding alone, without a mean residual."""
    ends = []
    for micro in (8, 4, 2, 1):
        torch.set_default_dtype(torch.float64)
        try:
            made = scheduled(
                tmp_path / str(micro), schedules.constant(rig.setting(8), 160), rig.setting(8).to_trl(per_device=micro) | {"loss_type": "grpo"},
                model=rig.policy(dtype=torch.float64),
            )  # fmt: skip
            made.train()
        finally:
            torch.set_default_dtype(torch.float32)
        ends.append(weights(made))
    start = torch.cat([p.flatten() for p in rig.policy(dtype=torch.float64).parameters()])
    moved = (ends[0] - start).abs().mean()
    for other in ends[1:]:
        residual = other - ends[0]
        assert residual.abs().max() < 1e-5 * moved
        assert abs(residual.mean()) < 1e-7 * moved


# -- switches -------------------------------------------------------------------------------------------------------


class Spy:
    """Records what each micro-batch's loss was computed on."""

    def __init__(self, trainer):
        self.seen = []
        right = trainer._compute_loss

        def compute(model, inputs):
            loss = right(model, inputs)
            self.seen.append(
                (trainer.state.global_step, len(inputs["advantages"]), "old_per_token_logps" in inputs, trainer.current_gradient_accumulation_steps)
            )
            return loss

        trainer._compute_loss = compute


def test_switches_take_place_as_planned(tmp_path):
    schedule = rig.misaligned()
    made = scheduled(tmp_path, schedule)
    spy = Spy(made)
    made.train()
    table = Timetable(schedule)
    assert made.state.global_step == table.updates
    sizes = [sum(rows for update, rows, _, _ in spy.seen if update == k) for k in range(table.updates)]
    assert sizes == [table.rollout(k).setting.batch for k in range(table.updates)]
    assert {(table.rollout(k).setting.batch // 4) for k in range(table.updates)} == {1, 2, 8, 3}
    assert all(old for _, _, old, _ in spy.seen)
    assert all(window == table.rollout(update).setting.batch // 4 for update, _, _, window in spy.seen)
    assert logged(made, "learning_rate") == pytest.approx([table.lr(k) for k in range(table.updates)], rel=1e-12)
    assert logged(made, "twoclocks/samples") == [table.samples_before(k + 1) for k in range(table.updates)]
    assert [row["step"] for row in made.state.log_history if "reward" in row] == [r.update + 1 for r in table.rollouts]
    assert made.samples == table.samples == schedule.samples


@pytest.mark.parametrize("loss", LOSSES)
def test_updates_around_misaligned_switches_have_the_gradient_of_their_whole_batch(tmp_path, loss):
    """The logged gradient norm of every update against one backward pass over all of its completions at once."""
    stages = [(rig.setting(4, 1e-12, 4), 12), (rig.setting(24, 1e-12, 2), 48), (rig.setting(8, 1e-12, 1), 32)]  # weights stay put
    made = scheduled(
        tmp_path, Schedule(tuple(Stage(s, n) for s, n in stages)),
        {"loss_type": loss, "max_grad_norm": 1e9, "generation_kwargs": {"min_new_tokens": 5}},  # equal lengths: token and sequence means agree
    )  # fmt: skip
    seen, right = {}, made._compute_loss

    def compute(model, inputs):
        seen.setdefault(made.state.global_step, []).append(inputs)
        return right(model, inputs)

    made._compute_loss = compute
    made.train()
    assert {len(micro) for micro in seen.values()} == {1, 2, 6}
    for update, micro in seen.items():
        whole = {k: torch.cat([m[k] for m in micro]) if micro[0][k].dim() else micro[0][k] for k in micro[0] if micro[0][k] is not None}
        rollout = made.timetable.rollout(update)
        made.state.global_step, made.current_gradient_accumulation_steps = update, 1
        made.args.steps_per_generation = rollout.setting.updates_per_rollout  # in units of whole batches
        made.epsilon_low, made.epsilon_high = made._clip(rollout.setting, loss)
        made.model.zero_grad()
        right(made.model, whole).backward()
        norm = torch.stack([p.grad.norm() for p in made.model.parameters()]).norm()
        assert logged(made, "grad_norm")[update] == pytest.approx(float(norm), rel=1e-4, abs=1e-7), update


def test_the_warm_up_is_that_of_the_schedule(tmp_path):
    schedule = schedules.sqrt_switch(rig.setting(8), 16, 32, 96, lr_warmup_samples=40)
    made = scheduled(tmp_path, schedule)
    made.train()
    assert logged(made, "learning_rate")[:3] == pytest.approx([1e-3 * (n + 4) / 40 for n in (0, 8, 16)])
    assert logged(made, "learning_rate")[-1] == pytest.approx(1e-3 * 2**0.5)


def test_prompts_come_in_trls_order_and_each_pass_holds_all(tmp_path):
    prompts = rig.PROMPTS[:10]
    made = scheduled(tmp_path, schedules.constant(rig.setting(16, updates=1), 160), prompts=prompts)  # 4 prompts a rollout, 40 draws
    seen = [row["prompt"] for rollout in made.timetable.rollouts for row in made._rows(rollout)]
    assert seen[::4] == seen[1::4] == seen[3::4]  # groups are consecutive
    for start in range(0, 40, 10):
        assert sorted(seen[::4][start : start + 10]) == sorted(p["prompt"] for p in prompts)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(made.args.seed)).tolist()
    assert seen[:40:4] == [prompts[i]["prompt"] for i in order]


# -- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"learning_rate": 5e-4}, "learning_rate=0.0005 is the schedule's to set"),
        ({"max_steps": 7}, "max_steps=7"),
        ({"lr_scheduler_type": "cosine"}, "lr_scheduler_type=cosine"),
        ({"warmup_steps": 10}, "warmup_steps=10"),
        ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps=3"),
        ({"steps_per_generation": 6}, "steps_per_generation=6"),
        ({"num_iterations": 2}, "num_iterations=2"),
        ({"epsilon": 0.3}, "epsilon=0.3"),
        ({"per_device_train_batch_size": 6, "num_generations": 6}, "num_generations=6"),
        ({"per_device_train_batch_size": 24, "num_generations": 4}, "nearest batches: 24"),
        ({"beta": 0.1}, "beta=0.1 needs a reference model"),
        ({"use_transformers_continuous_batching": True, "bf16": True}, "cast the master weights"),
    ],
)
def test_what_disagrees_with_the_schedule_is_refused_by_name(tmp_path, fields, says):
    with pytest.raises(SettingError, match=says):
        scheduled(tmp_path, schedules.constant(rig.setting(16), 320), fields)


def test_fields_that_agree_are_accepted(tmp_path):
    one = rig.setting(16)
    scheduled(tmp_path, schedules.constant(one, 320), one.to_trl(per_device=4))


def test_data_that_cannot_be_followed_is_refused(tmp_path):
    from datasets import Dataset

    with pytest.raises(SettingError, match="3 prompts are fewer than the 8 of one rollout"):
        scheduled(tmp_path, schedules.constant(rig.setting(16), 320), prompts=rig.PROMPTS[:3])
    with pytest.raises(SettingError, match="not an iterable one"):
        ScheduledGRPOTrainer(
            schedule=schedules.constant(rig.setting(16), 320), model=rig.policy(), reward_funcs=rig.odd_digits,
            args=rig.config(tmp_path, per_device_train_batch_size=4, num_generations=4), train_dataset=Dataset.from_list(rig.PROMPTS).to_iterable_dataset(),
            processing_class=rig.tokenizer(),
        )  # fmt: skip
    with pytest.raises(SettingError, match="group size changes"):
        scheduled(tmp_path, Schedule((Stage(rig.setting(16), 32), Stage(rig.setting(16, group=8), 32))))


def test_the_users_arguments_are_left_as_they_were(tmp_path):
    args = rig.config(tmp_path, per_device_train_batch_size=4, num_generations=4)
    before = args.to_dict()
    from datasets import Dataset

    ScheduledGRPOTrainer(
        schedule=schedules.constant(rig.setting(16), 32), model=rig.policy(), reward_funcs=rig.odd_digits, args=args,
        train_dataset=Dataset.from_list(rig.PROMPTS), processing_class=rig.tokenizer(),
    ).train()  # fmt: skip
    assert args.to_dict() == before


# -- generation -----------------------------------------------------------------------------------------------------


def test_generation_never_exceeds_the_chunk(tmp_path):
    made = scheduled(tmp_path, schedules.constant(rig.setting(16), 64), generation_chunk=5)
    calls, generate = [], made.model.generate
    made.model.generate = lambda input_ids, **kwargs: calls.append(len(input_ids)) or generate(input_ids=input_ids, **kwargs)
    made.train()
    assert calls == [5, 5, 5, 5, 5, 5, 2] * 2
    with pytest.raises(SettingError, match="generation_chunk=0"):
        scheduled(tmp_path, schedules.constant(rig.setting(16), 64), generation_chunk=0)


@pytest.mark.slow
def test_continuous_batching_leaves_the_weights_dtype(tmp_path):
    made = scheduled(tmp_path, schedules.constant(rig.setting(8), 32), {"use_transformers_continuous_batching": True})
    made.train()
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}
    made._dtypes = dict.fromkeys(made._dtypes, torch.float64)
    with pytest.raises(SettingError, match="cast the weights in place"):
        made._generate_single_turn([[1, 2, 3]] * 4, None, {}, 4)


def test_peft_adapters_are_what_is_measured(tmp_path):
    from peft import LoraConfig

    made = scheduled(
        tmp_path, schedules.constant(rig.setting(8), 32), peft_config=LoraConfig(r=2, target_modules=["q_proj", "v_proj"]), meter=DriftMeter(probe_every=1)
    )
    made.train()
    trained = sum(p.numel() for p in made.model.parameters() if p.requires_grad)
    assert sum(d.numel() for d in made.meter.delta) == trained < 3000
    assert all(x > 0 for x in logged(made, "twoclocks/update_norm"))


# -- resuming -------------------------------------------------------------------------------------------------------


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
    for step in (1, 4, 13, 17, 19, 20, 21):
        kinds.add(table.inner(step) > 0)
        made = resumed(folder, tmp_path / str(step), step)
        assert torch.equal(weights(made), end), step
        for key in ("reward", "learning_rate", "twoclocks/samples", "twoclocks/drift_k3", "twoclocks/drift_cum_k3"):
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
    assert checkpoint.newest(copy).name == "checkpoint-20" or checkpoint.newest(copy).name > "checkpoint-21"
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
