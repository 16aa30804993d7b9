"""`twoclocks check` and `twoclocks import`: what a configuration or records folder is, and logs turned into records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from twoclocks import preflight
from twoclocks.cli import show
from twoclocks.cli.options import AsJson, Columns, Given, Settings, load
from twoclocks.errors import RecordsError
from twoclocks.records import read, write
from twoclocks.schedule import Schedule


def check(
    path: Annotated[Path, typer.Argument(help="a records folder, or a GRPO configuration (YAML or JSON fields of TRL's GRPOConfig)")],
    schedule: Annotated[Path | None, typer.Option(help="schedule JSON that a ScheduledGRPOTrainer would follow with this configuration")] = None,
    prompts: Annotated[int | None, typer.Option(help="size of the training dataset")] = None,
    processes: Annotated[int, typer.Option(min=1, help="data-parallel processes")] = 1,
    as_json: AsJson = False,
) -> None:
    """Validate a records folder and say what it holds, or say what a configuration will do and refuse what would go wrong (exit code 2)."""
    if not path.is_dir():
        report = preflight.check(preflight.read_config(path), Schedule.load(schedule) if schedule else None, prompts=prompts, processes=processes)
        show.as_json(vars(report)) if as_json else show.line(str(report))
        if report.problems:
            raise typer.Exit(2)
        return
    runs = read(path)
    if as_json:
        counts = runs.runs.groupby(["testbed", "sweep", "device", "status"]).size().rename("runs").reset_index()
        show.as_json({"runs": len(runs.runs), "curve_rows": len(runs.curves), "groups": counts.to_dict("records")})
        return
    show.runs_table(runs, f"{path}: {len(runs.runs)} runs, {len(runs.curves)} curve rows, no rule broken")


def import_logs(
    logs: Annotated[Path, typer.Argument(help="a log or a folder with logs: trainer_state.json, verl, W&B, TensorBoard, trackio, MLflow, csv, parquet, jsonl")],
    out: Annotated[Path, typer.Option(help="records folder to write; an existing one is not overwritten")],
    settings: Settings = None,
    given: Given = None,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """Turn logs into a records folder, and say what was repaired on the way."""
    if out.exists():
        raise RecordsError(f"{out}: exists and is left as it is; choose another --out")
    runs = load(logs, settings, given, columns)
    write(runs, out, "imported")
    told = [(row, json.loads(str(row.config))) for row in runs.runs.itertuples()]
    if as_json:
        show.as_json(
            {"out": str(out), "runs": [{"run_id": row.run_id, "batch": row.batch, "lr": row.lr, "samples": row.samples_done, **kept} for row, kept in told]}
        )
        return
    for row, kept in told:
        show.line(f"{kept['run']} ({kept['source']}): batch {row.batch}, lr {row.lr:.3g}, {row.samples_done:,} completions")
        for note in kept["notes"]:
            show.line(f"  {note}")
    show.line(f"wrote {len(runs.runs)} runs to {out}")
