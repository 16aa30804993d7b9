"""Candidate settings and their three rates per sample: progress, hazard, seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twoclocks.errors import ExtrapolationError, SettingError
from twoclocks.failure import FailureClock
from twoclocks.progress import ProgressClock
from twoclocks.setting import Setting

if TYPE_CHECKING:
    import pandas as pd

DRIFT_POINTS = 33  # candidates of c between the fitted bounds, per batch
Pace = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Rates:
    """What a sample is worth and what it costs at (B, c).

    Attributes
    ----------
    progress, failure : ProgressClock, FailureClock
    lives : DataFrame or None
        Draws of the failure clock; with them the hazard is 1/(lower `level` bound of E*), else 1/E*.
    pace : callable or None
        Batch -> seconds per completion.
    """

    progress: ProgressClock
    failure: FailureClock
    lives: pd.DataFrame | None = None
    level: float = 0.95
    pace: Pace | None = None

    def gain(self, batch: np.ndarray, drift_rate: np.ndarray) -> np.ndarray:
        """Progress per completion."""
        return self.progress.per_sample(batch, drift_rate, extrapolate=True)

    def hazard(self, batch: np.ndarray, drift_rate: np.ndarray) -> np.ndarray:
        """Damage per completion."""
        if self.lives is None:
            return self.failure.hazard(batch, drift_rate, extrapolate=True)
        b, c = np.log(np.asarray(batch, float) / self.failure.batch0), np.log(np.asarray(drift_rate, float) / self.failure.drift_rate0)
        draws = (self.lives[name].to_numpy() for name in ("samples", "b_batch", "b_drift"))
        start, by_batch, by_drift = (d.reshape(-1, *(1,) * b.ndim) for d in draws)
        return np.exp(-np.quantile(np.log(start) + by_batch * b + by_drift * c, 1 - self.level, axis=0))

    def seconds(self, batch: np.ndarray) -> np.ndarray:
        """Seconds per completion.

        Raises
        ------
        SettingError
            If no pace is known.
        """
        if self.pace is None:
            raise SettingError("objective='wall_clock' needs throughput= (completions per second by batch), or runs that measured their seconds")
        return self.pace(np.asarray(batch, float))


def common_range(progress: ProgressClock, failure: FailureClock) -> tuple[tuple[float, float], tuple[float, float]]:
    """(batch range, drift range) that both clocks were fitted on.

    Raises
    ------
    SettingError
        If they do not overlap.
    """
    batch, drift = ((max(a[0], b[0]), min(a[1], b[1])) for a, b in ((progress.batch_range, failure.batch_range), (progress.drift_range, failure.drift_range)))
    if batch[0] > batch[1] or drift[0] > drift[1]:
        raise SettingError("the two clocks were fitted on ranges that do not overlap; add runs that progress and fail in one range of batch and lr")
    return batch, drift


def candidates(progress: ProgressClock, failure: FailureClock, group: int, updates_per_rollout: int) -> tuple[np.ndarray, np.ndarray]:
    """Legal (B, c) pairs inside what both clocks were fitted on: batches half an octave apart, c on a log grid."""
    (low, high), (c_low, c_high) = common_range(progress, failure)
    step = batch_step(low, group, updates_per_rollout)
    octaves = int(2 * math.log2(high / low)) + 1
    batches = np.unique([max(step, round(low * 2 ** (k / 2) / step) * step) for k in range(octaves + 1)])
    batches = batches[(batches >= low) & (batches <= high)]
    if not len(batches):
        raise SettingError(f"no batch between {low:g} and {high:g} makes whole groups of {group}")
    grid = np.meshgrid(batches, np.geomspace(c_low, c_high, DRIFT_POINTS), indexing="ij")
    return grid[0].ravel(), grid[1].ravel()


def named(settings: Sequence[Setting], shared: Mapping[str, Any], progress: ProgressClock, failure: FailureClock) -> tuple[np.ndarray, np.ndarray]:
    """(B, c) of the settings that a user names.

    Raises
    ------
    SettingError
        If there is none, or one differs from the fitted runs in more than batch and lr.
    ExtrapolationError
        If one lies outside what both clocks were fitted on.
    """
    if not settings:
        raise SettingError("settings=[]: name at least one, or leave it out for a grid over the fitted range")
    (low, high), (c_low, c_high) = common_range(progress, failure)
    for s in settings:
        for name in ("group", "updates_per_rollout", "clip"):
            if getattr(s, name) != shared[name]:
                raise SettingError(f"setting {s}: {name}={getattr(s, name)}, but the clocks were fitted on runs with {name}={shared[name]}")
        near = 1 + 1e-6
        if not (low / near <= s.batch <= high * near and c_low / near <= s.drift_rate <= c_high * near):
            raise ExtrapolationError(
                f"setting with batch {s.batch}, lr {s.lr:g} (drift rate {s.drift_rate:.3g}) is outside the fitted batch {low:g} to {high:g} and "
                f"drift rate {c_low:.3g} to {c_high:.3g}; add runs there"
            )
    return np.array([float(s.batch) for s in settings]), np.array([s.drift_rate for s in settings])


def batch_step(batch: float, group: int, updates_per_rollout: int) -> int:
    """Batches are multiples of this: whole groups, which every trainer can run; below one group, what makes a rollout S*B whole groups."""
    return group if batch >= group else group // math.gcd(group, updates_per_rollout)


def pace_of(throughput: Mapping[float, float] | Pace | None, cells: pd.DataFrame) -> Pace | None:
    """Batch -> seconds per completion: from a table or function of completions per second, else as the runs measured it.

    Between measured batches it is interpolated in logs; outside them it is refused.

    Raises
    ------
    SettingError
        If a throughput is not positive.
    """
    if callable(throughput):
        given = throughput
        return lambda batch: 1.0 / np.asarray(given(batch), float)
    if throughput is None:
        if "seconds_per_sample" not in cells or cells["seconds_per_sample"].isna().all():
            return None
        measured = cells.groupby("batch")["seconds_per_sample"].median().dropna()
        table = {float(b): 1 / float(s) for b, s in measured.items() if s > 0}  # type: ignore[arg-type]
    else:
        table = {float(b): float(q) for b, q in throughput.items()}
    if not table or min(table.values()) <= 0 or min(table) <= 0:
        raise SettingError(f"throughput={table}: batches and completions per second must be positive")
    batches = np.array(sorted(table))
    seconds = np.array([1 / table[b] for b in batches])

    def pace(batch: np.ndarray) -> np.ndarray:
        inside = (batch >= batches[0] * (1 - 1e-9)) & (batch <= batches[-1] * (1 + 1e-9))
        if not np.all(inside):
            raise ExtrapolationError(
                f"throughput is known for batches {batches[0]:g} to {batches[-1]:g}, asked for {np.min(batch):g} to {np.max(batch):g}; measure it there"
            )
        return np.exp(np.interp(np.log(batch), np.log(batches), np.log(seconds)))

    return pace
