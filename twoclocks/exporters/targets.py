"""One function a trainer: a stage in the trainer's own keys and units.

Keys as of 2026-08 (verl 0.8, OpenRLHF 0.11, NeMo-RL, AReaL 1.0, slime 0.3, prime-rl, open-instruct, ms-swift 4.4, axolotl 0.18) and
TRL 1.16. Each function gets a `StagePlan` and returns (fields, conditions that must hold in the trainer's own terms, notes).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twoclocks.errors import ScheduleError
from twoclocks.setting import NO_CLIP_HIGH, Setting

Fields = dict[str, Any]
Target = tuple[Fields, list[str], list[str]]


@dataclass(frozen=True)
class StagePlan:
    """A stage with the counts that trainers ask for.

    Attributes
    ----------
    number : int
        From 0.
    setting : Setting
    rollouts, updates, samples : int
        Done at the end of this stage, counted from the start of the run.
    warmup_updates, warmup_rollouts : int
        Length of the lr warm-up at this stage's batch; 0 in later stages.
    processes : int
        Data-parallel processes.
    per_device : int or None
        Completions per process and micro-step where the trainer asks for it; default B/processes.
    """

    number: int
    setting: Setting
    rollouts: int
    updates: int
    samples: int
    warmup_updates: int
    warmup_rollouts: int
    processes: int
    per_device: int | None

    @property
    def clip(self) -> tuple[float, float]:
        """(eps_low, eps_high); a range that never binds where there is no clip."""
        return self.setting.clip or (1.0, NO_CLIP_HIGH)

    def prompts_per_update(self, trainer: str) -> int:
        """B/G, where a trainer counts the optimizer batch in prompts.

        Raises
        ------
        ScheduleError
            If it is not whole.
        """
        s = self.setting
        if s.batch % s.group:
            raise ScheduleError(
                f"stage {self.number}: {trainer} counts the optimizer batch in prompts, and {s.batch} completions are {s.batch / s.group:g} of them"
            )
        return s.batch // s.group


def trl(p: StagePlan) -> Target:
    """GRPOConfig fields; ScheduledGRPOTrainer follows the schedule itself."""
    fields = p.setting.to_trl(per_device=p.per_device, processes=p.processes)
    fields |= {"lr_scheduler_type": "constant_with_warmup" if p.warmup_updates else "constant", "warmup_steps": p.warmup_updates, "max_steps": p.updates}
    notes = [
        "twoclocks.trainers.ScheduledGRPOTrainer(schedule=...) follows all stages in one run",
        "resuming a plain GRPOTrainer restores the old learning rate and places the data by update count: set both rates of every "
        "parameter group, and ignore_data_skip=True",
    ]
    return fields, ["per_device_train_batch_size x processes x steps_per_generation is a whole number of groups"], notes


def ms_swift(p: StagePlan) -> Target:
    """`swift rlhf --rlhf_type grpo` arguments: TRL's, on its own trainer."""
    fields, conditions, _ = trl(p)
    return (
        fields | {"rlhf_type": "grpo"},
        conditions,
        ["resume_from_checkpoint restores optimizer and learning rate as in transformers: set the new rate after loading"],
    )


def axolotl(p: StagePlan) -> Target:
    """YAML keys of axolotl's `rl: grpo`."""
    f, conditions, _ = trl(p)
    rollout = f["per_device_train_batch_size"] * p.processes * f["steps_per_generation"]
    fields = {
        "rl": "grpo",
        "micro_batch_size": f["per_device_train_batch_size"],
        "gradient_accumulation_steps": f["gradient_accumulation_steps"],
        "trl.num_generations": f["num_generations"],
        "trl.generation_batch_size": rollout,
        "trl.num_iterations": 1,
        "trl.epsilon": f["epsilon"],
        "trl.epsilon_high": f["epsilon_high"],
        "learning_rate": f["learning_rate"],
        "lr_scheduler": f["lr_scheduler_type"],
        "warmup_steps": f["warmup_steps"],
        "max_steps": f["max_steps"],
    }
    return fields, conditions, ["resume_from_checkpoint restores optimizer and learning rate as in transformers: set the new rate after loading"]


def verl(p: StagePlan) -> Target:
    """Hydra overrides of verl's PPO trainer with GRPO advantages; batches in prompts, the lr schedule in rollout steps."""
    s = p.setting
    fields = {
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": s.prompts,
        "actor_rollout_ref.rollout.n": s.group,
        "actor_rollout_ref.actor.ppo_mini_batch_size": p.prompts_per_update("verl"),
        "actor_rollout_ref.actor.ppo_epochs": 1,
        "actor_rollout_ref.actor.optim.lr": s.lr,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": p.warmup_rollouts,
        "actor_rollout_ref.actor.clip_ratio_low": p.clip[0],
        "actor_rollout_ref.actor.clip_ratio_high": p.clip[1],
        "trainer.total_training_steps": p.rollouts,
    }
    conditions = [
        f"data.train_batch_size x rollout.n = {s.rollout} completions a rollout; ppo_mini_batch_size x rollout.n = {s.batch} an update",
        f"ppo_mini_batch_size x rollout.n is divisible by the data-parallel size ({p.processes})",
    ]
    notes = [
        "learning-rate steps and total_training_steps are rollout steps, not updates",
        "resume with actor_rollout_ref.actor.checkpoint.load_contents=[model,optimizer] (without extra): the scheduler's state would "
        "bring the old learning rate back; the optimizer's parameter groups still do so for the first step",
        "the `file` logger is opened anew on resume: keep a copy of the earlier jsonl",
    ]
    return fields, conditions, notes


def openrlhf(p: StagePlan) -> Target:
    """Command-line flags of OpenRLHF's Ray trainer; rollouts in prompts, updates in completions."""
    s = p.setting
    fields = {
        "--rollout.batch_size": s.prompts,
        "--rollout.n_samples_per_prompt": s.group,
        "--train.batch_size": s.batch,
        "--train.max_epochs": 1,
        "--actor.adam.lr": s.lr,
        "--actor.lr_scheduler": "constant",
        "--actor.eps_clip_low_high": f"{p.clip[0]:g} {p.clip[1]:g}",
    }
    return (
        fields,
        [f"rollout.batch_size x n_samples_per_prompt = {s.rollout} is a multiple of train.batch_size = {s.batch}"],
        ["--ckpt.load_enable restores optimizer and learning-rate scheduler: the new rate holds only if the scheduler's state is left out"],
    )


def prime_rl(p: StagePlan) -> Target:
    """prime-rl's TOML keys; a step is one update of the whole rollout batch."""
    s = p.setting
    if s.updates_per_rollout != 1:
        raise ScheduleError(
            f"stage {p.number}: prime-rl takes one update per rollout batch, and the stage has {s.updates_per_rollout}; plan with updates_per_rollout=1"
        )
    fields = {
        "orchestrator.batch_size": s.batch,
        "orchestrator.group_size": s.group,
        "trainer.optim.lr": s.lr,
        "trainer.scheduler.type": "constant",
        "trainer.loss.dppo_mask_low": p.clip[0],
        "trainer.loss.dppo_mask_high": p.clip[1],
        "max_steps": p.updates,
    }
    notes = [
        "dppo_mask_* mask tokens by probability, they do not clip a ratio: the clip range is carried over by number only",
        "rollouts may be up to max_off_policy_steps old: updates per rollout are not what makes them stale here",
        "the trainer loads the scheduler whatever ckpt.skip_scheduler says: start a run from the weights, or check the rate after loading",
    ]
    return fields, [f"orchestrator.batch_size = {s.batch} rollouts is a multiple of group_size = {s.group}"], notes


def open_instruct(p: StagePlan) -> Target:
    """Flags of open-instruct's grpo_fast; rollouts in prompts."""
    s = p.setting
    fields = {
        "--num_unique_prompts_rollout": s.prompts,
        "--num_samples_per_prompt_rollout": s.group,
        "--num_mini_batches": s.updates_per_rollout,
        "--num_epochs": 1,
        "--learning_rate": s.lr,
        "--lr_scheduler_type": "constant",
        "--clip_lower": p.clip[0],
        "--clip_higher": p.clip[1],
        "--total_episodes": p.samples,
    }
    return (
        fields,
        [f"a rollout of {s.rollout} completions in num_mini_batches = {s.updates_per_rollout} parts is {s.batch} an update"],
        ["--checkpoint_state_dir restores DeepSpeed's optimizer and scheduler: set the rate after loading"],
    )


def nemo_rl(p: StagePlan) -> Target:
    """YAML keys of NeMo-RL's GRPO; steps are rollout steps, the optimizer batch is in completions."""
    s = p.setting
    fields = {
        "grpo.num_prompts_per_step": s.prompts,
        "grpo.num_generations_per_prompt": s.group,
        "grpo.max_num_steps": p.rollouts,
        "policy.train_global_batch_size": s.batch,
        "policy.optimizer.kwargs.lr": s.lr,
        "loss_fn.ratio_clip_min": p.clip[0],
        "loss_fn.ratio_clip_max": p.clip[1],
    }
    return (
        fields,
        [f"num_prompts_per_step x num_generations_per_prompt = {s.rollout} is a multiple of train_global_batch_size = {s.batch}"],
        ["the scheduler steps once a rollout step; policy.scheduler with milestones can hold the rates of all stages in one run, the batch can't"],
    )


def areal(p: StagePlan) -> Target:
    """YAML keys of AReaL; rollouts in prompts, updates as a number of mini-batches."""
    s = p.setting
    fields = {
        "train_dataset.batch_size": s.prompts,
        "gconfig.n_samples": s.group,
        "actor.ppo_n_minibatches": s.updates_per_rollout,
        "actor.optimizer.lr": s.lr,
        "actor.optimizer.lr_scheduler_type": "constant",
        "actor.eps_clip": p.clip[0],
        "actor.eps_clip_higher": p.clip[1],
        "total_train_steps": p.rollouts,
    }
    return (
        fields,
        [f"batch_size x n_samples = {s.rollout} in ppo_n_minibatches = {s.updates_per_rollout} parts is {s.batch} an update"],
        ["the learning rate steps once a train step; rollout.max_head_offpolicyness adds staleness beyond the updates of a rollout"],
    )


def slime(p: StagePlan) -> Target:
    """Flags of slime on Megatron; the lr schedule counts samples."""
    s = p.setting
    fields = {
        "--rollout-batch-size": s.prompts,
        "--n-samples-per-prompt": s.group,
        "--global-batch-size": s.batch,
        "--num-rollout": p.rollouts,
        "--lr": s.lr,
        "--lr-decay-style": "constant",
        "--eps-clip": p.clip[0],
        "--eps-clip-high": p.clip[1],
    }
    return (
        fields,
        [f"rollout-batch-size x n-samples-per-prompt = {s.rollout} is a multiple of global-batch-size = {s.batch}"],
        ["--load restores Megatron's learning-rate state: override it with the new arguments (Megatron's override_opt_param_scheduler)"],
    )


TARGETS: dict[str, Callable[[StagePlan], Target]] = {
    "trl": trl,
    "verl": verl,
    "openrlhf": openrlhf,
    "prime-rl": prime_rl,
    "open-instruct": open_instruct,
    "nemo-rl": nemo_rl,
    "areal": areal,
    "slime": slime,
    "ms-swift": ms_swift,
    "axolotl": axolotl,
}
