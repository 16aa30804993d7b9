"""twoclocks: how many samples a run needs, how many it has before collapse, and the schedule that follows."""

__version__ = "0.1.0"
