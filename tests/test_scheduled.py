from pathlib import Path

import pytest
import torch
from trl import GRPOTrainer

from tests import trainers as rig
from tests.trainers import logged, scheduled, weights
from twoclocks import schedule as schedules
from twoclocks.errors import SettingError
from twoclocks.schedule import Schedule, Stage
from twoclocks.timetable import Timetable
from twoclocks.trainers import DriftMeter, ScheduledGRPOTrainer

ROOT = Path(__file__).parents[1]
LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo"]


def stock(folder, fields, **kwargs):
    return rig.trainer(GRPOTrainer, folder, fields={"num_generations": 4, "learning_rate": 1e-3, "lr_scheduler_type": "constant"} | fields, **kwargs)


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
        ({"save_strategy": "epoch"}, "one long epoch"),
        ({"save_strategy": "steps", "save_only_model": True}, "save_only_model=True"),
        ({"epsilon_high": 1.2}, "epsilon_high=1.2"),
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
