"""TRL trainers; the only place in the package that imports torch and trl (extra `trl`)."""

from twoclocks.trainers.drift import MeteredGRPOTrainer

__all__ = ["MeteredGRPOTrainer"]
