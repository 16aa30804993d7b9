import json

import pytest

from twoclocks import Schedule, Setting, Stage, export
from twoclocks import schedule as schedules
from twoclocks.errors import ScheduleError, SettingError
from twoclocks.exporters.targets import TARGETS

FIRST = Setting(batch=128, lr=1e-6, group=8, updates_per_rollout=4)
SWITCHED = Schedule((Stage(FIRST, 5120), Stage(FIRST.scaled(512), 20_480)), lr_warmup_samples=1024)


def completions(to, f):
    """(rollout, update) of an export in completions, by each trainer's own arithmetic; two processes."""
    if to in ("trl", "ms-swift"):
        unit = f["per_device_train_batch_size"] * 2
        return unit * f["steps_per_generation"], unit * f["gradient_accumulation_steps"]
    if to == "axolotl":
        return f["trl.generation_batch_size"], f["micro_batch_size"] * 2 * f["gradient_accumulation_steps"]
    if to == "verl":
        group = f["actor_rollout_ref.rollout.n"]
        return f["data.train_batch_size"] * group, f["actor_rollout_ref.actor.ppo_mini_batch_size"] * group
    prompts, group, update = {
        "openrlhf": ("--rollout.batch_size", "--rollout.n_samples_per_prompt", "--train.batch_size"),
        "open-instruct": ("--num_unique_prompts_rollout", "--num_samples_per_prompt_rollout", "--num_mini_batches"),
        "nemo-rl": ("grpo.num_prompts_per_step", "grpo.num_generations_per_prompt", "policy.train_global_batch_size"),
        "areal": ("train_dataset.batch_size", "gconfig.n_samples", "actor.ppo_n_minibatches"),
        "slime": ("--rollout-batch-size", "--n-samples-per-prompt", "--global-batch-size"),
    }[to]
    rollout = f[prompts] * f[group]
    return rollout, rollout // f[update] if "mini" in update else f[update]


@pytest.mark.parametrize("to", [t for t in TARGETS if t != "prime-rl"])
def test_every_trainer_gets_the_same_completions(to):
    made = export(SWITCHED, to, processes=2, per_device=16)
    assert len(made.stages) == 2
    for stage, setting in zip(made.stages, (FIRST, FIRST.scaled(512)), strict=True):
        assert completions(to, stage.fields) == (setting.rollout, setting.batch)
        assert setting.lr in stage.fields.values()
        assert stage.conditions and stage.notes
    json.dumps(made.to_json())
    assert f"# {to}, stage 1" in str(made) and "start from the checkpoint of the stage before" in str(made)


def test_lengths_and_warm_up_are_in_the_trainers_own_steps():
    verl, trl = export(SWITCHED, "verl").stages, export(SWITCHED, "trl").stages
    assert [s.fields["trainer.total_training_steps"] for s in verl] == [10, 20]  # rollout steps, from the start of the run
    assert [s.fields["max_steps"] for s in trl] == [40, 80]
    assert [s.fields["actor_rollout_ref.actor.optim.lr_warmup_steps"] for s in verl] == [2, 0]
    assert [s.fields["warmup_steps"] for s in trl] == [8, 0]
    assert export(SWITCHED, "open-instruct").stages[-1].fields["--total_episodes"] == 25_600


def test_no_clip_never_binds():
    free = schedules.constant(Setting(batch=128, lr=1e-6, clip=None), 1024)
    fields = export(free, "nemo-rl").stages[0].fields
    assert fields["loss_fn.ratio_clip_min"] == 1.0 and fields["loss_fn.ratio_clip_max"] >= 1e6


def test_prime_rl_takes_one_update_a_rollout():
    with pytest.raises(ScheduleError, match="prime-rl takes one update per rollout batch, and the stage has 4"):
        export(SWITCHED, "prime-rl")
    one = export(schedules.constant(Setting(batch=128, lr=1e-6), 1024), "prime-rl").stages[0].fields
    assert one["orchestrator.batch_size"] == 128 and one["max_steps"] == 8


def test_refusals():
    with pytest.raises(ScheduleError, match="no such exporter; choose one of trl, verl"):
        export(SWITCHED, "megatron")
    with pytest.raises(SettingError, match="per_device=48"):
        export(SWITCHED, "trl", per_device=48)
    odd = schedules.constant(Setting(batch=12, lr=1e-6, group=8, updates_per_rollout=2), 240)
    with pytest.raises(ScheduleError, match=r"12 completions are 1\.5 of them"):
        export(odd, "verl")


def test_what_trl_gets_is_what_preflight_accepts():
    from twoclocks import preflight

    for stage in export(SWITCHED, "trl", processes=2, per_device=16).stages:
        assert not preflight.check({"logging_nan_inf_filter": False} | stage.fields, processes=2).problems
