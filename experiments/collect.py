"""Turn a sweep's run folders into records: `python -m experiments.collect outputs/pilot_progress --to experiments/results`.

The source may also be a records folder made elsewhere (on the GPU machine); it is then merged. Nothing is overwritten.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import typer

from twoclocks import records, schema
from twoclocks.errors import RecordsError, TwoclocksError
from twoclocks.failure import detect_collapses


def from_folders(root: Path) -> records.Runs:
    """Records of every closed run under a sweep's root, curves thinned, `collapsed` by the pooled rule.

    Raises
    ------
    RecordsError
        If there is no run, or one is still running.
    """
    folders = sorted(file.parent for file in root.glob("*/run.json"))
    if not folders:
        raise RecordsError(f"{root}: no run folders; expected {root}/<run id>/run.json")
    rows = [json.loads((folder / "run.json").read_text()) for folder in folders]
    running = [row["run_id"] for row in rows if row["status"] == "running"]
    if running:
        raise RecordsError(f"{root}: run {running[0]} is still running; wait for it, or let the sweep mark it as killed")
    curves = {folder.name: records.read_curve(folder / "curve.jsonl") for folder in folders if (folder / "curve.jsonl").exists()}
    curves = {run_id: curve for run_id, curve in curves.items() if len(curve)}
    if not curves:
        raise RecordsError(f"{root}: no run has a curve; see error.txt in the run folders")
    evaluations = {}
    for run_id, curve in curves.items():
        seen = curve[curve["heldout_acc"].notna()]
        if len(seen) >= 3:
            evaluations[run_id] = (seen["samples"], seen["heldout_acc"])
    collapses, _ = detect_collapses(evaluations) if evaluations else ({}, 0.0)
    for row in rows:
        row["collapsed"] = collapses[row["run_id"]].confirmed if row["run_id"] in collapses else None
    table = pd.DataFrame(rows, columns=[c.name for c in schema.RUN_COLUMNS])
    return records.Runs(table, pd.concat([records.thin(curve) for curve in curves.values()], ignore_index=True))


def main(source: Path, to: Path = Path("experiments/results")) -> None:
    """Collect SOURCE (run folders, or a records folder with one sweep) into the records folder --to."""
    try:
        made_elsewhere = (source / "runs.parquet").exists()
        found = records.read(source) if made_elsewhere else from_folders(source)
        sweeps = set(found.runs["sweep"])
        if len(sweeps) != 1:
            raise RecordsError(f"{source}: runs of {len(sweeps)} sweeps ({', '.join(sorted(sweeps))}); collect one sweep at a time")
        records.write(found, to, sweeps.pop())
    except TwoclocksError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    (to / "SCHEMA.md").write_text(schema.schema_markdown())
    print(f"{len(found.runs)} runs, {len(found.curves)} curve rows -> {to}")


if __name__ == "__main__":
    typer.run(main)
