"""Derivations: repo-local, never installed. `python -m theory` derives, proves the shipped functions, writes theory/derived/."""
