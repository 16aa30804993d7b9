"""`twoclocks`: check records, fit clocks, plan a schedule. Exit code 2 for input that breaks a rule; the message says which."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from twoclocks import __version__, preflight
from twoclocks.errors import RecordsError, ScheduleError, TwoclocksError
from twoclocks.exporters import export
from twoclocks.fitting import Clocks, fit
from twoclocks.importers import read_runs
from twoclocks.planner import plan
from twoclocks.records import Runs, read, write
from twoclocks.schedule import Schedule
from twoclocks.schema import RUN_COLUMNS

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
console = Console()

Records = Annotated[Path, typer.Argument(help="records folder (runs.parquet and curves/*.parquet), or logs of any trainer: a file or a folder")]
Settings = Annotated[Path | None, typer.Option("--settings", help="table with a column `run` and what the logs do not say: completions, group, lr ...")]
Given = Annotated[list[str] | None, typer.Option("--set", help="what the logs do not say, for every run: completions=32, group=8 ...; may repeat")]
Where = Annotated[list[str] | None, typer.Option("--where", help="keep runs with column=value; may repeat; value null for no clip")]
Metric = Annotated[str, typer.Option(help="curve column where more is better")]
Target = Annotated[float, typer.Option(help="level of the metric that counts as reached")]
Draws = Annotated[int, typer.Option("--n-boot", min=2, help="bootstrap draws behind the intervals")]


def load(path: Path, settings: Path | None, given: list[str] | None) -> Runs:
    """Records, or logs with what they do not say.

    Raises
    ------
    RecordsError
        If a --set is no name=number, both are given, or the logs say too little.
    """
    if settings is not None and given:
        raise RecordsError("--settings and --set: give one of them; a table may hold the same value for every run")
    facts: dict[str, Any] = {}
    for pair in given or []:
        name, _, value = pair.partition("=")
        try:
            facts[name] = float(value) if any(mark in value.lower() for mark in ".e") else int(value)
        except ValueError:
            facts[name] = value  # testbed, model, task are names
        if name not in ("testbed", "model", "task") and isinstance(facts[name], str):
            raise RecordsError(f"--set {pair}: {value!r} is not a number")
    return read_runs(path, settings=settings if settings is not None else facts)


def select(runs: Runs, where: list[str] | None) -> Runs:
    """Runs that satisfy every column=value.

    Raises
    ------
    RecordsError
        If a column is unknown, a value is not of its kind, or nothing is left.
    """
    kinds: dict[str, Any] = {c.name: {"int": int, "float": float, "str": str, "bool": lambda v: v.lower() in ("true", "1")}[c.kind] for c in RUN_COLUMNS}
    for condition in where or []:
        name, _, value = condition.partition("=")
        if name not in kinds:
            raise RecordsError(f"--where {condition}: no column {name!r}; the run table has {', '.join(kinds)}")
        try:
            wanted = None if value == "null" else kinds[name](value)
        except ValueError as error:
            raise RecordsError(f"--where {condition}: {error}") from error
        runs = runs.select(**{name: wanted})
    if runs.runs.empty:
        raise RecordsError(f"no run satisfies {' and '.join(where or [])}")
    return runs


def show(clocks: Clocks) -> None:
    """Print fitted clocks as a table."""
    table = Table(title=f"{clocks.metric} to {clocks.target:g} (a gain of {clocks.gain:.3g}), {len(clocks.cells)} runs, {clocks.level:.0%} intervals")
    for name in ("clock", "parameter", "value", "low", "high"):
        table.add_column(name, justify="left" if name in ("clock", "parameter") else "right")
    for row in clocks.summary().itertuples():
        numbers = ["", "", ""] if row.note else [f"{float(v):.4g}" for v in (row.value, row.low, row.high)]
        table.add_row(str(row.clock), str(row.parameter), *numbers)
    console.print(table)
    for clock, why in clocks.unidentified.items():
        console.print(f"{clock} clock unidentified: {why}", markup=False, highlight=False)
    for warning in clocks.warnings:
        console.print(f"warning: {warning}", markup=False, highlight=False)


def explain(schedule: Schedule) -> None:
    """Print a schedule, the reason for it, and what to be careful about."""
    for line in (str(schedule), schedule.provenance.get("reason"), *(schedule.provenance.get("notes") or [])):
        if line:
            console.print(str(line), markup=False, highlight=False)


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="a records folder, or a GRPO configuration (YAML or JSON fields of TRL's GRPOConfig)")],
    schedule: Annotated[Path | None, typer.Option(help="schedule JSON that a ScheduledGRPOTrainer would follow with this configuration")] = None,
    prompts: Annotated[int | None, typer.Option(help="size of the training dataset")] = None,
    processes: Annotated[int, typer.Option(min=1, help="data-parallel processes")] = 1,
) -> None:
    """Validate a records folder and say what it holds, or say what a configuration will do and refuse what would go wrong."""
    if not path.is_dir():
        report = preflight.check(preflight.read_config(path), Schedule.load(schedule) if schedule else None, prompts=prompts, processes=processes)
        console.print(str(report), markup=False, highlight=False)
        if report.problems:
            raise typer.Exit(2)
        return
    runs = read(path)
    table = Table(title=f"{path}: {len(runs.runs)} runs, {len(runs.curves)} curve rows, no rule broken")
    for name in ("testbed", "sweep", "device", "status", "runs"):
        table.add_column(name)
    for key, count in runs.runs.groupby(["testbed", "sweep", "device", "status"]).size().items():
        table.add_row(*map(str, key), str(count))
    console.print(table)


@app.command(name="import")
def import_command(
    logs: Annotated[Path, typer.Argument(help="a log, or a folder with logs: trainer_state.json, verl jsonl, W&B or other csv, parquet and jsonl")],
    out: Annotated[Path, typer.Option(help="records folder to write; an existing one is not overwritten")],
    settings: Settings = None,
    given: Given = None,
) -> None:
    """Turn logs into a records folder, and say what was repaired on the way."""
    if out.exists():
        raise RecordsError(f"{out}: exists and is left as it is; choose another --out")
    runs = load(logs, settings, given)
    write(runs, out, "imported")
    for row in runs.runs.itertuples():
        kept = json.loads(str(row.config))
        said = f"{kept['run']} ({kept['source']}): batch {row.batch}, lr {row.lr:.3g}, {row.samples_done:,} completions"
        for line in (said, *(f"  {note}" for note in kept["notes"])):
            console.print(line, markup=False, highlight=False)
    console.print(f"wrote {len(runs.runs)} runs to {out}", markup=False, highlight=False)


@app.command(name="fit")
def fit_command(
    records: Records, target: Target, metric: Metric = "heldout_acc", where: Where = None, n_boot: Draws = 200, settings: Settings = None, given: Given = None
) -> None:
    """Fit the progress and failure clocks."""
    show(fit(select(load(records, settings, given), where), metric=metric, target=target, n_boot=n_boot))


@app.command(name="plan")
def plan_command(
    records: Records,
    target: Target,
    samples: Annotated[int, typer.Option(help="training completions to spend")],
    metric: Metric = "heldout_acc",
    where: Where = None,
    safety: Annotated[float, typer.Option(help="share of the failure clock to use, at most 1")] = 0.8,
    out: Annotated[Path | None, typer.Option(help="write the schedule here; an existing file is not overwritten")] = None,
    n_boot: Draws = 200,
    accept_misfit: Annotated[bool, typer.Option("--accept-misfit", help="plan even where the runs contradict a clock's law")] = False,
    settings: Settings = None,
    given: Given = None,
) -> None:
    """Fit the clocks and turn them into a schedule, with the reason for it."""
    if out is not None and out.exists():
        raise ScheduleError(f"{out}: exists and is left as it is; choose another --out")
    if out is not None and not out.absolute().parent.is_dir():
        raise ScheduleError(f"{out}: no such folder; create it first")
    clocks = fit(select(load(records, settings, given), where), metric=metric, target=target, n_boot=n_boot)
    show(clocks)
    schedule = plan(clocks, samples=samples, safety=safety, accept_misfit=accept_misfit)
    explain(schedule)
    if out is not None:
        schedule.save(out)
        console.print(f"wrote {out}", markup=False, highlight=False)


@app.command(name="show")
def show_command(schedule: Annotated[Path, typer.Argument(help="schedule JSON")]) -> None:
    """Print a schedule in words."""
    explain(Schedule.load(schedule))


@app.command(name="export")
def export_command(
    schedule: Annotated[Path, typer.Argument(help="schedule JSON")],
    to: Annotated[str, typer.Option(help="trl, verl, openrlhf, prime-rl, open-instruct, nemo-rl, areal, slime, ms-swift or axolotl")],
    processes: Annotated[int, typer.Option(min=1, help="data-parallel processes")] = 1,
    per_device: Annotated[int | None, typer.Option(min=1, help="completions per process and micro-step, where the trainer asks for it")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Print a schedule as another trainer's configuration, a fragment a stage."""
    found = export(Schedule.load(schedule), to, processes=processes, per_device=per_device)
    print(json.dumps(found.to_json(), indent=1) if as_json else found)  # noqa: T201


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__, highlight=False)


def main() -> None:
    """Console entry point."""
    try:
        app()
    except TwoclocksError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
