"""Timings of the library, each a ratio measured within one run."""
