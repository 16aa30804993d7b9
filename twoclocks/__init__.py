"""twoclocks: how many samples a run needs, how many it has before collapse, and the schedule that follows.

>>> import twoclocks as tc
>>> clocks = tc.fit(tc.read_records("experiments/results").select(sweep="pilot_progress"), target=0.3)  # doctest: +SKIP
>>> schedule = tc.plan(clocks, samples=200_000, safety=0.8)  # doctest: +SKIP
"""

from twoclocks.errors import TwoclocksError
from twoclocks.exporters import export
from twoclocks.failure import Collapse, FailureClock, detect_collapse, detect_collapses
from twoclocks.fitting import Clocks, fit
from twoclocks.importers import read_runs
from twoclocks.planner import plan
from twoclocks.progress import ProgressClock
from twoclocks.records import Runs
from twoclocks.records import read as read_records
from twoclocks.schedule import Schedule, Stage, constant, fixed_lr_switch, seesaw, sqrt_switch
from twoclocks.setting import Setting

__version__ = "0.1.0"

__all__ = [
    "Clocks",
    "Collapse",
    "FailureClock",
    "ProgressClock",
    "Runs",
    "Schedule",
    "Setting",
    "Stage",
    "TwoclocksError",
    "constant",
    "detect_collapse",
    "detect_collapses",
    "export",
    "fit",
    "fixed_lr_switch",
    "plan",
    "read_records",
    "read_runs",
    "seesaw",
    "sqrt_switch",
]
