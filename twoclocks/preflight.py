"""Pre-flight: what a GRPO configuration will really do, in words, and what in it would silently go wrong.

Works on plain fields of TRL's GRPOConfig, so it needs no torch; `ScheduledGRPOTrainer` and `twoclocks check` call it. It
refuses and offers the nearest legal values; it changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twoclocks.errors import SettingError
from twoclocks.schedule import Schedule
from twoclocks.setting import NO_CLIP_HIGH
from twoclocks.timetable import Timetable

# GRPOConfig's defaults (TRL 1.16, transformers 5.17) of what is read here
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_generations": 8,
    "num_iterations": 1,
    "max_steps": -1,
    "num_train_epochs": 3.0,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "warmup_ratio": None,
    "epsilon": 0.2,
    "epsilon_high": None,
    "beta": 0.0,
    "bf16": None,
    "fp16": False,
    "use_transformers_continuous_batching": False,
    "logging_nan_inf_filter": True,
    "auto_find_batch_size": False,
    "loss_type": "dapo",
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "top_p": 1.0,
    "log_completions": False,
    "eval_strategy": "no",
    "save_strategy": "steps",
    "save_only_model": False,
    "per_device_eval_batch_size": 8,
    "num_generations_eval": None,
    "top_k": 0,
}
OWNED = (
    "gradient_accumulation_steps",
    "steps_per_generation",
    "generation_batch_size",
    "num_generations",
    "num_iterations",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "warmup_ratio",
    "max_steps",
    "num_train_epochs",
    "epsilon",
    "epsilon_high",
)


@dataclass
class Report:
    """What a configuration does.

    Attributes
    ----------
    words : list of str
        What will happen.
    warnings : list of str
        Legal, and likely not meant.
    problems : list of str
        What must be changed, each with the nearest legal values.
    """

    words: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.words, *(f"warning: {w}" for w in self.warnings), *(f"refused: {p}" for p in self.problems)])


def read_config(path: str | Path) -> dict[str, Any]:
    """Fields of a GRPOConfig from a YAML or JSON file; numbers that YAML reads as text (2e-6) are coerced.

    Raises
    ------
    SettingError
        If the file is no mapping of fields, holds interpolations (`${`) or `_target_`, or a number is not one.
    """
    import yaml

    if not Path(path).exists():
        raise SettingError(f"{path}: no such file or records folder")
    try:
        text = Path(path).read_text()
        fields = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingError(f"{path}: not readable YAML or JSON ({error})") from error
    if not isinstance(fields, dict):
        raise SettingError(f"{path}: expected a mapping of GRPOConfig fields, such as per_device_train_batch_size: 8")
    if "${" in text or "_target_" in text:
        raise SettingError(f"{path}: interpolations (${{...}}) and _target_ are not followed; write plain values")
    for name, default in DEFAULTS.items():
        if isinstance(fields.get(name), str) and (name in _NUMBERS or isinstance(default, int | float)) and not isinstance(default, bool):
            try:
                fields[name] = float(fields[name]) if "." in fields[name] or "e" in fields[name].lower() else int(fields[name])
            except ValueError as error:
                raise SettingError(f"{path}: {name}={fields[name]!r} is not a number") from error
    return fields


_NUMBERS = ("steps_per_generation", "generation_batch_size", "warmup_ratio", "epsilon_high")


def nearest_multiples(value: int, step: int) -> str:
    """The multiples of step on either side of a value, in words."""
    below = value // step * step
    return f"{below} or {below + step}" if below else f"{below + step}"


def check(
    fields: Mapping[str, Any],
    schedule: Schedule | None = None,
    *,
    prompts: int | None = None,
    processes: int = 1,
    in_memory_model: bool = False,
) -> Report:
    """What a GRPOConfig does, on a schedule or by itself.

    Parameters
    ----------
    fields : mapping
        GRPOConfig fields; those left out have TRL's defaults.
    schedule : Schedule, optional
        The schedule of a `ScheduledGRPOTrainer`; without it the configuration of a plain GRPOTrainer is judged.
    prompts : int, optional
        Size of the training dataset.
    processes : int
        Data-parallel processes.
    in_memory_model : bool
        The model is an object that has no path to be loaded from again.
    """
    config = {**DEFAULTS, **{k: v for k, v in fields.items() if k in DEFAULTS}}
    report = Report()
    if config["warmup_ratio"] is not None:
        report.problems.append("warmup_ratio is gone in transformers 5 and GRPOConfig refuses it: set warmup_steps below 1 for a share of the updates")
    if schedule is None:
        _plain(config, report, prompts, processes)
    else:
        _scheduled(config, schedule, report, prompts, processes)
    _general(config, report, in_memory_model)
    return report


def require_legal(fields: Mapping[str, Any], schedule: Schedule | None = None, **kwargs: Any) -> Report:
    """`check`, raising its problems.

    Raises
    ------
    SettingError
        With every problem and its remedy.
    """
    report = check(fields, schedule, **kwargs)
    if report.problems:
        raise SettingError("; ".join(report.problems))
    return report


def _plain(config: dict[str, Any], report: Report, prompts: int | None, processes: int) -> None:
    micro, gas, mu, group = (int(config[k]) for k in ("per_device_train_batch_size", "gradient_accumulation_steps", "num_iterations", "num_generations"))
    unit = micro * processes
    if (
        config["steps_per_generation"] is not None
        and config["generation_batch_size"] is not None
        and config["generation_batch_size"] != unit * config["steps_per_generation"]
    ):
        report.problems.append("steps_per_generation and generation_batch_size are both set and disagree: TRL refuses; give one of them")
        return
    rollout = config["generation_batch_size"] or unit * (config["steps_per_generation"] or gas)
    if rollout % unit:
        report.problems.append(
            f"generation_batch_size={rollout} is not a multiple of per_device_train_batch_size x processes = {unit}; "
            f"nearest: {nearest_multiples(rollout, unit)}"
        )
        return
    slices = rollout // unit
    batch = unit * gas
    if group < 2:
        report.problems.append(f"num_generations={group}: GRPO needs at least 2 completions a prompt")
        return
    if rollout % group:
        report.problems.append(
            f"a rollout of {rollout} completions is not a whole number of groups of {group}; nearest rollouts: "
            f"{nearest_multiples(rollout, math.lcm(group, unit))} (steps_per_generation {nearest_multiples(slices, math.lcm(group, unit) // unit)})"
        )
        return
    report.words += [
        f"{batch} completions per optimizer update ({micro} a process and micro-batch x {processes} processes x {gas} accumulated)",
        f"{rollout} completions per rollout: {rollout // group} prompts x {group}",
    ]
    if gas > slices and mu > 1:
        report.problems.append(
            f"gradient_accumulation_steps={gas} exceeds steps_per_generation={slices} with num_iterations={mu}: the same completions would "
            f"be counted {min(mu, gas // slices)} times within one update, and the ratio would stay 1; set steps_per_generation to a multiple "
            f"of {gas}, or num_iterations=1"
        )
    elif (slices * mu) % gas and gas % (slices * mu):
        report.warnings.append(
            f"updates of {gas} micro-batches straddle rollouts of {slices} x {mu}: some updates mix two rollout policies; "
            f"nearest steps_per_generation: {nearest_multiples(slices, gas)}"
        )
    updates = slices * mu / gas
    if updates > 1:
        report.words.append(f"{updates:g} optimizer updates per rollout: {updates - 1:g} of them off-policy")
    else:
        report.words.append("every update is on-policy: the ratio is 1 by construction, clip_ratio logs 0, and TRL keeps no old log-probabilities")
    if prompts is not None:
        _plain_data(config, report, prompts, rollout // group, slices * mu, gas)


def _plain_data(config: dict[str, Any], report: Report, prompts: int, per_rollout: int, repeats: int, gas: int) -> None:
    rollouts = prompts // per_rollout
    if rollouts == 0:
        report.problems.append(
            f"{prompts} prompts are fewer than the {per_rollout} of one rollout: TRL would make 0 updates and exit with success; "
            f"use at least {per_rollout} prompts, or a rollout of at most {prompts} prompts"
        )
        return
    micro_steps = rollouts * repeats
    updates = math.ceil(micro_steps / gas)
    report.words.append(f"a pass over {prompts} prompts is {rollouts} rollouts and {updates} updates (prompts x num_generations x num_iterations / batch)")
    if prompts % per_rollout:
        report.warnings.append(f"{prompts % per_rollout} of {prompts} prompts fill no rollout and are dropped in every pass")
    if micro_steps % gas:
        report.warnings.append(f"the last update of every pass has {micro_steps % gas} instead of {gas} micro-batches")
    total = config["max_steps"] if config["max_steps"] > 0 else math.ceil(config["num_train_epochs"] * updates)
    report.words.append(f"{total} updates in all")


def _scheduled(config: dict[str, Any], schedule: Schedule, report: Report, prompts: int | None, processes: int) -> None:
    timetable = Timetable(schedule)
    if not timetable.rollouts:
        report.problems.append("the schedule does not hold one update")
        return
    micro = int(config["per_device_train_batch_size"])
    unit = micro * processes
    groups = {stage.setting.group for stage in schedule.stages}
    if len(groups) > 1:
        report.problems.append(f"the group size changes along the schedule ({sorted(groups)}): TRL normalises by one group size; give all stages the same")
    for number, stage in enumerate(schedule.stages):
        if stage.setting.batch % unit:
            s = stage.setting
            step = math.lcm(unit, s.group // math.gcd(s.group, s.updates_per_rollout))
            legal = [d for d in range(1, stage.setting.batch + 1) if stage.setting.batch % (d * processes) == 0]
            report.problems.append(
                f"stage {number}: batch {stage.setting.batch} is not a multiple of per_device_train_batch_size x processes = {unit}; nearest batches: "
                f"{nearest_multiples(stage.setting.batch, step)}; per_device_train_batch_size may be one of {', '.join(map(str, legal[-6:])) or 'none'}"
            )
    _owned(config, schedule, report, processes)
    for name in ("save_strategy", "eval_strategy"):
        if getattr(config[name], "value", config[name]) == "epoch":
            report.problems.append(f"{name}='epoch': a schedule is one long epoch; use {name}='steps'")
    if config["save_only_model"] and getattr(config["save_strategy"], "value", config["save_strategy"]) != "no":
        report.problems.append("save_only_model=True: a resume without the optimizer's state would be another run; set it to False, or save_strategy='no'")
    generations = config["num_generations_eval"] or schedule.stages[0].setting.group
    if getattr(config["eval_strategy"], "value", config["eval_strategy"]) != "no" and int(config["per_device_eval_batch_size"]) * processes % generations:
        rows = int(config["per_device_eval_batch_size"]) * processes
        report.problems.append(
            f"an evaluation batch of {rows} completions is not a whole number of groups of {generations}; nearest: {nearest_multiples(rows, generations)}"
        )
    for rollout in [timetable.rollouts[0], *timetable.switches()]:
        s = rollout.setting
        clip = "no ratio clip" if s.clip is None else f"ratio clip [{1 - s.clip[0]:g}, {1 + s.clip[1]:g}]"
        report.words.append(
            f"from {rollout.samples:,} completions (update {rollout.update}): {s.batch} completions per update, {s.updates_per_rollout} updates per rollout "
            f"of {s.rollout} completions ({s.prompts} prompts x {s.group}), lr {s.lr:.3g}, {clip}"
        )
    end = 0
    for stage, switch in zip(schedule.stages, timetable.switches(), strict=False):
        end += stage.samples
        if switch.samples != end:
            report.warnings.append(f"the switch planned at {end:,} completions takes place at {switch.samples:,}, the end of the rollout under way")
    drawn = timetable.rollouts[-1].prompts + timetable.rollouts[-1].setting.prompts
    generated = sum(r.setting.rollout for r in timetable.rollouts)
    report.words.append(f"{timetable.updates} updates, {len(timetable.rollouts)} rollouts, {timetable.samples:,} completions trained, {drawn:,} prompts drawn")
    if timetable.samples < schedule.samples:
        report.warnings.append(f"the last {schedule.samples - timetable.samples} completions of the schedule hold no whole update and are left out")
    if generated > timetable.samples:
        report.warnings.append(f"the last rollout is used in part: {generated - timetable.samples} of its completions are generated and not trained on")
    if prompts is not None:
        most = max(r.setting.prompts for r in timetable.rollouts)
        if prompts < most:
            report.problems.append(
                f"{prompts} prompts are fewer than the {most} of one rollout, so that a rollout would hold a prompt twice; "
                f"use at least {most} prompts, or rollouts of at most {prompts * next(iter(groups))} completions"
            )
        report.words.append(f"{drawn / prompts:.2f} passes over {prompts} prompts")


def _owned(config: dict[str, Any], schedule: Schedule, report: Report, processes: int) -> None:
    """A field that the schedule owns may have TRL's default or agree with the first stage."""
    first, micro = schedule.stages[0].setting, int(config["per_device_train_batch_size"])
    unit = micro * processes
    agreed = {
        "gradient_accumulation_steps": {1, first.batch / unit},
        # TRL fills these two in from the others, whatever the user gave
        "steps_per_generation": {None, config["gradient_accumulation_steps"], first.rollout / unit},
        "generation_batch_size": {None, unit * config["gradient_accumulation_steps"], first.rollout},
        "num_generations": {DEFAULTS["num_generations"], first.group},
        "num_iterations": {1},
        "learning_rate": {DEFAULTS["learning_rate"], first.lr},
        "lr_scheduler_type": {"linear", "constant"},
        "warmup_steps": {0},
        "warmup_ratio": {None, 0},
        "max_steps": {-1, Timetable(schedule).updates},
        "num_train_epochs": {3, 1},
        "epsilon": {DEFAULTS["epsilon"], *((first.clip[0],) if first.clip else (1.0,))},
        "epsilon_high": {None, first.clip[1] if first.clip else NO_CLIP_HIGH},
    }
    if first.clip and config["loss_type"] == "cispo":
        agreed["epsilon_high"].add(1 + first.clip[1])  # cispo caps the ratio itself
    for name in OWNED:
        value = getattr(config[name], "value", config[name])  # enums of transformers
        if value not in agreed[name]:
            wanted = " or ".join(str(v) for v in sorted(agreed[name], key=str) if v is not None)
            report.problems.append(f"{name}={value} is the schedule's to set; leave it out (agreeing values: {wanted})")


def _general(config: dict[str, Any], report: Report, in_memory_model: bool) -> None:
    if config["beta"] and in_memory_model:
        report.problems.append(f"beta={config['beta']} needs a reference model loaded from the model's path, and this model has none: pass a path, or beta=0.0")
    if config["use_transformers_continuous_batching"] and (config["bf16"] or config["bf16"] is None or config["fp16"]):
        report.problems.append(
            "use_transformers_continuous_batching with bf16 or fp16: TRL would cast the master weights in place for good; set bf16=False, fp16=False"
        )
    if config["auto_find_batch_size"]:
        report.problems.append("auto_find_batch_size changes batches behind the schedule; set it to False and lower per_device_train_batch_size")
    if config["logging_nan_inf_filter"]:
        report.warnings.append("logging_nan_inf_filter=True logs the running mean in place of NaN losses: a diverged run looks healthy; set it to False")
    if config["use_vllm"] and config["vllm_importance_sampling_correction"] and (config["top_p"] < 1 or config["top_k"]):
        report.problems.append(
            "top_p < 1 or top_k with vLLM's importance-sampling correction biases the ratio; set top_p=1.0 and top_k=0, or switch the correction off"
        )
    if config["log_completions"] and getattr(config["eval_strategy"], "value", config["eval_strategy"]) != "no":
        report.warnings.append("log_completions with evaluation: an evaluation at the step of a log overwrites that step's completions file")
    if config["loss_type"] == "cispo" and (config["epsilon_high"] or config["epsilon"]) < 1:
        report.warnings.append("loss_type='cispo' caps the ratio itself at epsilon_high: a value below 1 cuts every ratio; a schedule's clip gives 1 + high")
    if config["loss_type"] == "bnpo":
        report.warnings.append("loss_type='bnpo' averages over the tokens of each micro-batch: the same batch gives another gradient in another layout")
