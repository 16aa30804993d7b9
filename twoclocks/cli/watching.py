"""`twoclocks watch`: both clocks of a live run, read again as its log grows."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from twoclocks.cli import show
from twoclocks.cli.options import AsJson, Columns, Given, Metric, Settings, load
from twoclocks.errors import FitError, RecordsError
from twoclocks.fitting import Forecast, forecast
from twoclocks.monitor import Reading, clocks_of, read_log
from twoclocks.records import Runs
from twoclocks.schedule import Schedule


def watch(
    run: Annotated[Path, typer.Argument(help="log of a live run: a checkpoint folder, jsonl, event files, trackio or MLflow store, or a run folder of ours")],
    schedule: Annotated[Path | None, typer.Option(help="schedule JSON from `twoclocks plan`; it carries the clocks")] = None,
    metric: Metric = "reward",
    threshold: Annotated[float | None, typer.Option(help="level of the drift meter to forecast")] = None,
    every: Annotated[float, typer.Option(min=0.1, help="seconds between looks")] = 5.0,
    once: Annotated[bool, typer.Option("--once", help="look once and leave")] = False,
    settings: Settings = None,
    given: Given = None,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """Show how far a live run has come on both clocks, until interrupted; with --json a line a look."""
    plan = Schedule.load(schedule) if schedule else None
    if plan is not None:
        clocks_of(plan)  # refuse before waiting

    def look() -> dict[str, Any]:
        return _state(load(run, settings, given, columns), plan, metric, threshold)

    state = look()
    if as_json or once:
        show.as_json(state, indent=None) if as_json else show.console.print(_table(state))
    if once:
        return
    with suppress(KeyboardInterrupt):
        if as_json:
            while True:
                time.sleep(every)
                show.as_json(look(), indent=None)
        with Live(_table(state), console=show.console, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                try:
                    live.update(_table(look()), refresh=True)
                except RecordsError as error:  # caught while its trainer was writing: look again
                    live.console.print(f"waiting: {error}", markup=False)


def _state(runs: Runs, plan: Schedule | None, metric: str, threshold: float | None) -> dict[str, Any]:
    """The newest run's standing, as plain values."""
    if runs.runs.empty:
        raise RecordsError("no run in this log yet")
    row = runs.runs.iloc[-1]
    name = str(row["run_id"])
    values = runs.curve(name, metric)[1]
    state: dict[str, Any] = {"run": json.loads(str(row["config"])).get("run", name), "samples": int(row["samples_done"]), "batch": int(row["batch"])}
    state |= {metric: float(values[-1]) if len(values) else None, "gained": float(values[-1] - values[0]) if len(values) else None}
    if plan is not None:
        reading: Reading = read_log(runs.of(name), *clocks_of(plan), safety=float(plan.provenance.get("safety", 1.0)), planned=plan.samples)
        state |= vars(reading)
    try:
        found: Forecast = forecast(runs, name, threshold=threshold)
    except FitError as error:
        state["drift"] = str(error)
    else:
        state |= {"meter": found.meter, "drift": found.value, "drift_rate": found.rate[0], "drift_samples_left": found.samples_left}
    return state


WORDS = {
    "gained": "gained since its first value",
    "gain": "gain expected by now",
    "drift_spent": "failure clock spent",
    "drift_at_end": "failure clock spent at the schedule's end",
    "samples_left": "completions until the safety budget",
    "planned_left": "completions still planned",
    "extrapolated": "setting outside the fitted range",
    "drift_samples_left": "completions to the drift threshold [median, low, high]",
    "drift_rate": "drift per completion",
}


def _table(state: dict[str, Any]) -> Table:
    table = Table(title="two clocks", show_header=False)
    for key, value in state.items():
        shown = f"{value:,.4g}" if isinstance(value, float) else ", ".join(f"{v:,.4g}" for v in value) if isinstance(value, tuple) else str(value)
        table.add_row(WORDS.get(key, key), shown)
    return table
