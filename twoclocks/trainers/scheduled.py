"""TRL's GRPOTrainer on a schedule: batch, learning rate, updates per rollout and clip change at rollout borders.

One Trainer step is one optimizer update. `args.gradient_accumulation_steps` stays 1 and the update's micro-batches are
accumulated inside `training_step`, because the Trainer's own accumulation window can't change mid-run without dividing some
gradients by the wrong count, and, on several processes, stepping on gradients that were never synchronised. Everything that
depends on position (setting, learning rate, prompts) is a pure function of the update index, so a resume needs no more than
the index, the random states and, inside a rollout, the rollout itself.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DistributedType
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from twoclocks.errors import ScheduleError, SettingError
from twoclocks.preflight import require_legal
from twoclocks.schedule import Schedule
from twoclocks.setting import Setting
from twoclocks.timetable import Rollout, Timetable
from twoclocks.trainers import checkpoint
from twoclocks.trainers.drift import PREFIX, DriftMeter
from twoclocks.trainers.prompts import PromptOrder

ENDLESS = 1 << 40  # updates of the one epoch: how many there will be is the timetable's to say, and may change
logger = logging.getLogger(__name__)


class Position(TrainerCallback):
    """Keeps the Trainer's own bookkeeping in step with the timetable."""

    def __init__(self, trainer: ScheduledGRPOTrainer) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        rollout = self.trainer.timetable.rollout(state.global_step - 1)
        state.epoch = (rollout.prompts + rollout.setting.prompts) / len(self.trainer.train_dataset)  # passes over the dataset
        if control.should_save:
            control.should_log = True  # what is measured but not yet logged would not survive the checkpoint


def grpo_config(schedule: Schedule, output_dir: str, *, per_device_train_batch_size: int, **fields: Any) -> GRPOConfig:
    """A GRPOConfig whose owned fields are those of the schedule's first stage, so that TRL's own checks pass.

    Needed where the micro-batch is not a multiple of the group; elsewhere a plain GRPOConfig does.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    owned = schedule.stages[0].setting.to_trl(per_device=per_device_train_batch_size, processes=processes)
    return GRPOConfig(output_dir, **{**owned, **fields})


class ScheduledGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that follows a `Schedule`.

    Parameters
    ----------
    schedule : Schedule
        In completions. It owns gradient_accumulation_steps, steps_per_generation, generation_batch_size, learning_rate,
        lr_scheduler_type, warm-up, max_steps, num_train_epochs, num_iterations, num_generations and the clip range.
    args : GRPOConfig, optional
        The rest. `per_device_train_batch_size` is the micro-batch, completions per process and backward pass; every batch
        of the schedule must be a multiple of it times the number of processes. The object is not changed.
    meter : DriftMeter, optional
        Default: token-space drift, no parameter-space probes.
    generation_chunk : int, optional
        Most sequences of one `generate` call (transformers' plain generate, text only); default: TRL's, a whole rollout.
    **kwargs
        As for GRPOTrainer (model, reward_funcs, train_dataset, processing_class, peft_config, callbacks ...).

    Notes
    -----
    Log-probabilities of the rollout policy are always recomputed by the trainer, also at one update per rollout, where TRL
    leaves them out. Prompts come in TRL's order (one permutation of the dataset a pass, from `args.seed`), without dropping
    the rest of a pass that fills no rollout; the logged epoch is passes over the dataset. With loss_type "cispo" the ratio's cap is
    1 + eps_high. A log row is written before every checkpoint, so that what was measured survives it.
    Every log row carries `twoclocks/samples`, completions trained: the x axis that stays comparable between batches. Rows of a
    rollout's first update carry `twoclocks/batch_effective`, B (1 - share of groups without variance).

    Raises
    ------
    SettingError
        If a field that the schedule owns is set and disagrees, a batch does not fit the micro-batch, the dataset can't be
        indexed or is too small, or the configuration would silently do something else (`twoclocks.preflight`).
    ScheduleError
        If the group size changes along the schedule, or a checkpoint was written under another past.
    """

    def __init__(
        self,
        *,
        schedule: Schedule,
        args: GRPOConfig | None = None,
        meter: DriftMeter | None = None,
        generation_chunk: int | None = None,
        **kwargs: Any,
    ) -> None:
        given = args if args is not None else GRPOConfig("scheduled_grpo")
        dataset = kwargs.get("train_dataset")
        if dataset is None or isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise SettingError("train_dataset: the schedule draws prompts by index and resumes by position; pass a dataset with a length, not an iterable one")
        try:
            json.dumps(schedule.to_json())
        except TypeError as error:
            raise ScheduleError(f"the schedule's provenance is not JSON ({error}), and checkpoints carry it: keep plain values there") from error
        self._given, self.timetable = schedule, Timetable(schedule)
        model = kwargs.get("model")
        named = isinstance(model, str) or bool(getattr(getattr(model, "config", None), "_name_or_path", ""))
        in_memory = not (named or kwargs.get("peft_config") or hasattr(model, "peft_config"))  # an adapter's reference is the base model
        report = require_legal(vars(given), schedule, prompts=len(dataset), processes=given.world_size, in_memory_model=in_memory)
        for warning in report.warnings:
            logger.warning(warning)
        self.generation_chunk = generation_chunk
        if generation_chunk is not None and generation_chunk < 1:
            raise SettingError(f"generation_chunk={generation_chunk}: must be at least 1")
        first = self.timetable.rollouts[0]
        own = copy.copy(given)
        own.gradient_accumulation_steps, own.num_iterations, own.max_steps = 1, 1, self.timetable.updates
        own.num_generations, own.learning_rate = first.setting.group, first.setting.lr
        own.steps_per_generation = first.setting.rollout // (own.per_device_train_batch_size * own.world_size)
        own.generation_batch_size = first.setting.rollout
        own.epsilon, own.epsilon_high = self._clip(first.setting, own.loss_type)
        self._position: Path | None = None  # checkpoint whose rollout is to be restored
        self._kept_logps: torch.Tensor | None = None
        super().__init__(args=own, **kwargs)
        self._order = PromptOrder(len(self.train_dataset), own.seed, self.shuffle_dataset)
        self._dtypes = {name: p.dtype for name, p in self.model.named_parameters()}
        self.meter = meter if meter is not None else DriftMeter()
        if self.meter.probe_every and self.is_deepspeed_enabled:
            raise SettingError(
                "DriftMeter(probe_every > 0) reads parameters around the optimizer step, which DeepSpeed takes inside backward; use probe_every=0"
            )
        self._readers: list[Any] = []
        for callback in self.callback_handler.callbacks:
            self._attach(callback)
        self.add_callback(self.meter)
        self.add_callback(Position(self))

    def add_callback(self, callback: Any) -> None:
        """As Trainer.add_callback; what reads the run (`TwoClocks`, `DriftMeter`) is attached to it."""
        super().add_callback(callback)
        self._attach(self.callback_handler.callbacks[-1])

    def _attach(self, callback: Any) -> None:
        if hasattr(callback, "attach") and hasattr(callback, "read"):
            callback.attach(self)
            self._readers.append(callback)

    # -- position --------------------------------------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """Completions trained so far."""
        return self.timetable.samples_before(min(self.state.global_step, self.timetable.updates))

    def reschedule(self, schedule: Schedule) -> None:
        """Follow another schedule from the next rollout on; one that ends here stops the run.

        Raises
        ------
        ScheduleError
            If it differs from the present one before the end of the present rollout.
        SettingError
            If one of its settings does not fit the micro-batch, the processes or the dataset.
        """
        timetable = Timetable(schedule)
        done = self.state.global_step
        if self._inside():
            rollout = self.timetable.rollout(done)
            done = rollout.update + rollout.updates
        timetable.check_same_past(self.timetable, done)
        fields = {"per_device_train_batch_size": self.args.per_device_train_batch_size}
        require_legal(fields, schedule, prompts=len(self.train_dataset), processes=self.args.world_size)
        self.timetable = timetable
        self.state.max_steps = self.args.max_steps = timetable.updates
        if self.state.global_step and self.state.global_step >= timetable.updates:
            self.control.should_training_stop = True

    def _inside(self) -> bool:
        """Whether the next update continues a rollout."""
        return self.state.global_step < self.timetable.updates and self.timetable.inner(self.state.global_step) > 0

    def _left_of_rollout(self) -> bool:
        """Whether the rollout of the last update has completions that a longer schedule would still train on."""
        done = self.state.global_step
        if done == 0:
            return False
        rollout = self.timetable.rollout(done - 1)
        return done - rollout.update < rollout.setting.updates_per_rollout

    def _micro_batches(self, setting: Setting) -> int:
        return setting.batch // (self.args.per_device_train_batch_size * self.args.world_size)

    @staticmethod
    def _clip(setting: Setting, loss_type: str) -> tuple[float, float]:
        fields = setting.to_trl()
        return fields["epsilon"], 1 + fields["epsilon_high"] if loss_type == "cispo" else fields["epsilon_high"]

    # -- data ------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """One item an update: what the Trainer counts by. The prompts themselves are drawn by `_rows`."""
        return DataLoader(range(ENDLESS), batch_size=1)  # type: ignore[arg-type]

    def _rows(self, rollout: Rollout) -> list[dict[str, Any]]:
        """Rows of a rollout's prompts that this process generates from, each repeated for its group; processes hold consecutive parts."""
        group, share = rollout.setting.group, rollout.setting.rollout // self.args.world_size
        first = self.args.process_index * share
        numbers = [rollout.prompts + row // group for row in range(first, first + share)]
        return self.data_collator([self.train_dataset[self._order(number)] for number in numbers])

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list[Any], None]:
        """The next update as one batch: its rollout's rows if it begins one, else nothing, as TRL serves it from its buffer."""
        next(epoch_iterator)
        update = self.state.global_step
        if update >= self.timetable.updates:  # resumed at its end
            self.control.should_training_stop = True
            return [], None
        rollout = self.timetable.rollout(update)
        self._refresh_lr()
        setting = rollout.setting
        self.epsilon_low, self.epsilon_high = self._clip(setting, self.loss_type)
        self.args.steps_per_generation = setting.updates_per_rollout * self._micro_batches(setting)
        self.args.generation_batch_size = setting.rollout
        if update == rollout.update:
            self._step, self._buffered_inputs = 0, None
            return [self._rows(rollout)], None
        if self._buffered_inputs is None:
            if self._position is None:
                raise ScheduleError(f"update {update} continues a rollout that is not in memory; resume from a checkpoint written by this trainer")
            self._buffered_inputs = checkpoint.read_rollout(self._position, self.args.process_index, self.accelerator.device)
            self._step = (update - rollout.update) * self._micro_batches(setting)
        return [[]], None

    # -- one update ------------------------------------------------------------------------------------------------

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One optimizer update's forward and backward passes; gradients are synchronised on the last micro-batch."""
        count = self._micro_batches(self.timetable.rollout(self.state.global_step).setting)
        self.current_gradient_accumulation_steps = count
        losses = []
        for k in range(count):
            last = k == count - 1
            self.accelerator.gradient_state._set_sync_gradients(last)
            together = last or self.accelerator.distributed_type == DistributedType.DEEPSPEED
            with contextlib.nullcontext() if together else self.accelerator.no_sync(model):
                losses.append(super().training_step(model, inputs, num_items_in_batch))
        return torch.stack(losses).sum()

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        self._kept_logps = scored[0]
        return scored

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        if self.model.training and self._kept_logps is not None:
            setting = self.timetable.rollout(self.state.global_step).setting
            fields = setting.to_trl()
            self.meter.add(self._kept_logps, inputs, (fields["epsilon"], fields["epsilon_high"]))
        self._kept_logps = None
        return loss

    @torch.no_grad()
    def score(self, inputs: dict[str, Any]) -> torch.Tensor:
        """Log-probabilities (rows, tokens) of a micro-batch's completions under the policy as it is; text only."""
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        width = inputs["completion_ids"].size(1)
        size = self.args.per_device_train_batch_size
        return super()._get_per_token_logps_and_entropies(self.model, ids, attention, width, batch_size=size)[0]

    # -- generation ------------------------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids: Any, images: Any, multimodal_fields: Any, num_generations: int, *args: Any, **kwargs: Any) -> Any:
        chunk = self.generation_chunk
        plain = not (self.use_vllm or self.use_transformers_continuous_batching)
        if plain and chunk and len(prompt_ids) > chunk:
            if images or multimodal_fields:
                raise SettingError("generation_chunk: chunks of prompts with images are not supported; leave it out")
            ids: list[Any] = []
            for start in range(0, len(prompt_ids), chunk):
                ids += super()._generate_single_turn(prompt_ids[start : start + chunk], images, multimodal_fields, num_generations, *args, **kwargs)[0]
            return ids, None
        found = super()._generate_single_turn(prompt_ids, images, multimodal_fields, num_generations, *args, **kwargs)
        changed = [name for name, p in self.model.named_parameters() if p.dtype != self._dtypes[name]]
        if changed:
            raise SettingError(
                f"generation cast the weights in place ({changed[0]} is {self.model.get_parameter(changed[0]).dtype} now): set bf16=False and fp16=False"
            )
        return found

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self.model.training and "old_per_token_logps" not in output:  # TRL leaves them out where one update takes the whole rollout
            if "pixel_values" in output:
                raise SettingError("images with one update per rollout of one micro-batch: use a smaller per_device_train_batch_size")
            output["old_per_token_logps"] = self.score(output)
        return output

    # -- learning rate, logs, checkpoints --------------------------------------------------------------------------

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Learning rate as the timetable says, a pure function of the update index."""
        if getattr(self, "lr_scheduler", None) is None:
            optimizer = optimizer or self.optimizer
            for group in optimizer.param_groups:
                group["initial_lr"] = 1.0  # so that the rule's value is the learning rate itself
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self._lr)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _lr(self, update: int) -> float:
        # The scheduler steps once more after the last update
        return self.timetable.lr(min(update, self.timetable.updates - 1))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        device = self.args.device
        if device.type == "cpu":  # of several CPU processes the device is cpu:0, which torch.load can't map to
            self.args.__dict__["_setup_devices"] = torch.device("cpu")
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        finally:
            self.args.__dict__["_setup_devices"] = device

    def _refresh_lr(self) -> None:
        """Give the next update the timetable's learning rate: the scheduler's own count misses skipped steps and new schedules."""
        lr = self._lr(self.state.global_step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.lr_scheduler._last_lr = [lr] * len(self.optimizer.param_groups)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's, with the sample clock and the meter's readings under `twoclocks/`."""
        if self.model.training and "train_runtime" not in logs:  # the closing summary is no row of the run
            logs[PREFIX + "samples"] = float(self.samples)
            dead = self._metrics["train"].get("frac_reward_zero_std")
            if dead:  # groups whose rewards are all equal have no gradient: the batch that is left
                batch = self.timetable.rollout(self.state.global_step - 1).setting.batch
                logs[PREFIX + "batch_effective"] = batch * (1 - sum(dead) / len(dead))
            for reader in self._readers:
                logs |= {PREFIX + name: value for name, value in reader.read().items()}
        super().log(logs, start_time)
        if self.model.training and self.meter.ratio_hist is not None:  # text: for the history alone, TensorBoard takes numbers
            self.state.log_history[-1][PREFIX + "ratio_hist"] = self.meter.ratio_hist
            self.meter.ratio_hist = None

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As Trainer.train; True resumes from the newest complete checkpoint of `output_dir`.

        Raises
        ------
        ScheduleError
            If there is no complete checkpoint, or the schedule differs from the checkpoint's before its position.
        """
        self._buffered_inputs, self._step, self._position = None, 0, None
        self._metrics["train"].clear()
        self.meter.reset()
        if resume_from_checkpoint:
            folder = checkpoint.newest(Path(self.args.output_dir)) if resume_from_checkpoint is True else Path(str(resume_from_checkpoint))
            saved = checkpoint.read(folder, processes=self.args.world_size, micro=self.args.per_device_train_batch_size)
            followed = Timetable(Schedule.from_json(saved["schedule"], str(folder)))
            if saved["given"] == json.loads(json.dumps(self._given.to_json())):
                self.timetable = followed  # the run may have been replanned since it was started
                self.args.max_steps = followed.updates
            else:
                self.timetable.check_same_past(followed, saved["update"])
            for reader in self._readers:
                reader.restore(saved["readers"].get(type(reader).__name__, {}), folder)
            if self.args.should_save:
                checkpoint.supersede(Path(self.args.output_dir), saved["update"])
            self.accelerator.wait_for_everyone()
            self._position, resume_from_checkpoint = folder, str(folder)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        if self.args.should_save:
            (folder / checkpoint.MARKER).unlink(missing_ok=True)  # an earlier attempt's, of other weights
        self.accelerator.wait_for_everyone()
        limit, self.args.save_total_limit = self.args.save_total_limit, None  # the old ones go once the new one is complete
        try:
            super()._save_checkpoint(model, trial)
        finally:
            self.args.save_total_limit = limit
        buffered = self._buffered_inputs if self._left_of_rollout() else None
        if buffered is not None:
            checkpoint.write_rollout(folder, self.args.process_index, buffered)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            position = {"update": self.state.global_step, "samples": self.samples, "inside_rollout": buffered is not None}
            layout = {"processes": self.args.world_size, "per_device_train_batch_size": self.args.per_device_train_batch_size}
            readers = {type(reader).__name__: reader.save(folder) for reader in self._readers}
            schedules = {"schedule": self.timetable.schedule.to_json(), "given": self._given.to_json()}
            checkpoint.finish(folder, position | layout | schedules | {"readers": readers})
            checkpoint.rotate(folder.parent, limit, self.state.best_model_checkpoint)
