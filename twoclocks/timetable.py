"""A schedule as a trainer runs it: which update belongs to which rollout, with which setting, learning rate and sample count.

Settings change at rollout borders only: a rollout that begins at n completions runs all its updates with the setting of
`schedule(n)`, so a switch planned inside a rollout takes place at its end. No update is begun that would end past the
schedule; the last rollout may be used in part.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from twoclocks.errors import ScheduleError
from twoclocks.schedule import Schedule
from twoclocks.setting import Setting


@dataclass(frozen=True)
class Rollout:
    """One rollout.

    Attributes
    ----------
    index : int
        From 0.
    update : int
        Optimizer updates done before it.
    samples : int
        Completions trained before it.
    prompts : int
        Prompts drawn before it.
    setting : Setting
    updates : int
        Updates taken on it: S, or fewer on the last.
    """

    index: int
    update: int
    samples: int
    prompts: int
    setting: Setting
    updates: int


class Timetable:
    """All rollouts of a schedule.

    Attributes
    ----------
    schedule : Schedule
    rollouts : list of Rollout
    updates : int
        Optimizer updates in all.
    samples : int
        Completions trained in all, at most `schedule.samples`.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rollouts: list[Rollout] = []
        update = samples = prompts = 0
        while samples < schedule.samples:
            setting = schedule(samples)
            updates = min(setting.updates_per_rollout, (schedule.samples - samples) // setting.batch)
            if updates == 0:
                break
            self.rollouts.append(Rollout(len(self.rollouts), update, samples, prompts, setting, updates))
            update, samples, prompts = update + updates, samples + updates * setting.batch, prompts + setting.prompts
        self.updates, self.samples = update, samples
        self._starts = [r.update for r in self.rollouts]

    def rollout(self, update: int) -> Rollout:
        """The rollout that an update (from 0) belongs to.

        Raises
        ------
        ScheduleError
            If the update is not one of the schedule's.
        """
        if not 0 <= update < self.updates:
            raise ScheduleError(f"update {update}: the schedule has updates 0 to {self.updates - 1}")
        return self.rollouts[bisect_right(self._starts, update) - 1]

    def inner(self, update: int) -> int:
        """Which update of its rollout it is, from 0."""
        return update - self.rollout(update).update

    def samples_before(self, update: int) -> int:
        """Completions trained before an update; `update` may be one past the last."""
        if update == self.updates:
            return self.samples
        rollout = self.rollout(update)
        return rollout.samples + (update - rollout.update) * rollout.setting.batch

    def lr(self, update: int) -> float:
        """Learning rate of an update: its rollout's, times the warm-up's share at its middle."""
        setting = self.rollout(update).setting
        return setting.lr * self.schedule.warmup_share(self.samples_before(update), setting.batch)

    def switches(self) -> list[Rollout]:
        """The first rollout of every new setting after the first."""
        return [b for a, b in zip(self.rollouts, self.rollouts[1:], strict=False) if a.setting != b.setting]

    def check_same_past(self, earlier: Timetable, update: int) -> None:
        """Require that the first `update` updates, and the rollout that the last of them belongs to, are those of another timetable.

        Raises
        ------
        ScheduleError
            Names the first completion at which they differ.
        """
        for k in range(update):
            mine, theirs = ((t.rollout(k).setting, t.rollout(k).update, t.lr(k)) if k < t.updates else None for t in (self, earlier))
            if mine != theirs:
                at = earlier.samples_before(k)
                raise ScheduleError(
                    f"the schedule differs from the one this run followed at {at:,} completions, and {earlier.samples_before(update):,} "
                    f"are trained: change it past that point only, or start a new run ({theirs} became {mine})"
                )
