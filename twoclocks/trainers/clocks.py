"""The two clocks inside a run: log them, warn when the failure clock runs out, replan if asked to."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from twoclocks.errors import TwoclocksError
from twoclocks.monitor import Monitor, continued
from twoclocks.planner import FittedClocks, plan


class TwoClocks(TrainerCallback):
    """Logs `twoclocks/drift_spent`, `twoclocks/samples_left` and `twoclocks/gain_expected` with every log row.

    Parameters
    ----------
    clocks : Clocks
        From `twoclocks.fit`.
    safety : float
        D, the share of a collapse that the run may use up.
    margin : float
        Warns, once, when the schedule as it stands would spend more than (1 - margin) safety by its end.
    replan : bool
        At rollout borders plan the remaining samples with the remaining safety and follow the new plan if it begins with
        another setting. Every decision, and every plan that could not be followed, is in `decisions` and in the provenance of the
        schedule that the checkpoints carry.
    replan_every : int
        Rollouts between two plans.
    accept_misfit : bool
        As for `twoclocks.plan`.
    """

    def __init__(
        self, clocks: FittedClocks, *, safety: float = 0.8, margin: float = 0.0, replan: bool = False, replan_every: int = 8, accept_misfit: bool = False
    ) -> None:
        self.clocks, self.safety, self.margin = clocks, safety, margin
        self.replan, self.replan_every, self.accept_misfit = replan, replan_every, accept_misfit
        self.monitor = Monitor(clocks.require("progress"), clocks.require("failure"), safety)
        self.decisions: list[dict[str, Any]] = []
        self._trainer: Any = None
        self._warned = False

    def attach(self, trainer: Any) -> None:
        """Called once by the trainer whose callback this is."""
        self._trainer = trainer

    def read(self) -> dict[str, float]:
        """What the next log row holds."""
        found = self.monitor.read(self._trainer.timetable, self._trainer.state.global_step)
        return {
            "drift_spent": found.drift_spent,
            "samples_left": found.samples_left,
            "gain_expected": found.gain,
            "clocks_extrapolated": float(found.extrapolated),
        }

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        table, update = self._trainer.timetable, state.global_step
        if update >= table.updates:
            return
        found = self.monitor.read(table, update)
        if not self._warned and found.drift_at_end > (1 - self.margin) * self.safety * (1 + 1e-3):  # a plan may spend its budget to the last
            self._warned = True
            warnings.warn(
                f"after {self._trainer.samples:,} completions {found.drift_spent:.0%} of the failure clock is spent, and the schedule would spend "
                f"{found.drift_at_end:.0%} by its end; at this setting the safety budget of {self.safety:.0%} lasts {found.samples_left:,.0f} more of "
                f"{found.planned_left:,} completions: "
                "lower the learning rate, or stop there",
                stacklevel=2,
            )
        rollout = table.rollout(update)
        if self.replan and table.inner(update) == 0 and rollout.index % self.replan_every == 0:
            self._replan(update, found.drift_spent, found.planned_left)

    def save(self, folder: Path) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"decisions": self.decisions, "warned": self._warned}

    def restore(self, saved: dict[str, Any], folder: Path) -> None:
        """Inverse of `save`."""
        self.decisions, self._warned = list(saved.get("decisions", [])), bool(saved.get("warned", False))

    def _without_warm_up(self) -> FittedClocks:
        """The clocks for the rest of a run, whose warm-up lies behind it."""
        if not dataclasses.is_dataclass(self.clocks):
            return self.clocks
        return dataclasses.replace(self.clocks, shared=self.clocks.shared | {"lr_warmup_samples": 0})  # type: ignore[type-var]

    def _replan(self, update: int, spent: float, left: int) -> None:
        table = self._trainer.timetable
        decision: dict[str, Any] = {"update": update, "samples": self._trainer.samples, "drift_spent": spent}
        try:
            rest = plan(self._without_warm_up(), samples=left, safety=self.safety - spent, accept_misfit=self.accept_misfit)
            if rest.stages[0].setting == table.rollout(update).setting:
                return
            decision |= {"reason": rest.provenance["reason"], "followed": True}
            schedule = continued(table, update, rest)
            schedule.provenance["replans"] = [*self.decisions, decision]
            self._trainer.reschedule(schedule)
        except TwoclocksError as error:
            decision |= {"reason": str(error), "followed": False}
        self.decisions.append(decision)
