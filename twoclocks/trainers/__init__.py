"""TRL trainers; the only place in the package that imports torch and trl (extra `trl`)."""

from twoclocks.trainers.clocks import TwoClocks
from twoclocks.trainers.drift import DriftMeter
from twoclocks.trainers.scheduled import ScheduledGRPOTrainer, grpo_config

__all__ = ["DriftMeter", "ScheduledGRPOTrainer", "TwoClocks", "grpo_config"]
