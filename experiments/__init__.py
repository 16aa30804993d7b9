"""Runs: repo-local, never installed. `python -m experiments.{warmstart,train,sweep,collect}` from the repository root."""
