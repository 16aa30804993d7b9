"""From committed records to fits, figures, claims and schedules: repo-local, never installed. `python -m analysis reproduce`."""
