"""Typed errors. Each message names what was wrong, where, the rule it broke, and what to do about it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


class TwoclocksError(ValueError):
    """Base of every error this package raises on purpose; the command line turns it into exit code 2."""


class SettingError(TwoclocksError):
    """A setting that no trainer could run as written (batch, group, rollout or clip range do not fit together)."""


class RecordsError(TwoclocksError):
    """A records file or run folder that breaks the rules of `twoclocks.schema`."""


class FitError(TwoclocksError):
    """Runs that cannot be fitted together, or too few of them."""


class UnidentifiedError(TwoclocksError):
    """A quantity the runs at hand do not determine; the message names the run that would."""


class MisfitError(TwoclocksError):
    """A clock whose law the runs themselves contradict."""


class ExtrapolationError(TwoclocksError):
    """A question outside the range the clocks were fitted on."""


class NeverReachedError(TwoclocksError):
    """A target that the model says is never reached at this setting."""


class ScheduleError(TwoclocksError):
    """A schedule that is empty, out of order, from another schema version, or asked beyond its end."""


def check_range(name: str, value: ArrayLike, allowed: tuple[float, float]) -> None:
    """Raise ExtrapolationError if any value lies outside the allowed range (relative slack 1e-9)."""
    values = np.atleast_1d(np.asarray(value, float))
    low, high = allowed
    outside = values[(values < low * (1 - 1e-9)) | (values > high * (1 + 1e-9))]
    if outside.size:
        raise ExtrapolationError(
            f"{name}={outside[0]:.4g} is outside the fitted range [{low:.4g}, {high:.4g}]; "
            "run there and fit again, or pass extrapolate=True and treat the answer as a guess"
        )
