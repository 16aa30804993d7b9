"""`twoclocks fit`, `plan` and `plot`: clocks from runs, a schedule from clocks, and the picture of both."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twoclocks.cli import show
from twoclocks.cli.options import AsJson, Columns, Draws, Gain, Given, Metric, Model, Records, Settings, Target, Threshold, Where, fitted, load, select
from twoclocks.errors import ScheduleError, SettingError
from twoclocks.planner import plan
from twoclocks.schedule import Schedule

Throughput = Annotated[
    list[str] | None, typer.Option(help="batch=completions per second, for --objective wall_clock; may repeat; default as the runs measured")
]


def fit_clocks(
    records: Records,
    target: Target = None,
    gain: Gain = None,
    metric: Metric = "heldout_acc",
    model: Model = "curvature",
    where: Where = None,
    threshold: Threshold = None,
    n_boot: Draws = 200,
    settings: Settings = None,
    given: Given = None,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """Fit the progress and failure clocks; with a single run, forecast its drift."""
    clocks = fitted(select(load(records, settings, given, columns), where), metric, target, gain, model, n_boot, threshold)
    show.as_json(clocks.to_json()) if as_json else show.clocks_table(clocks)


def plan_schedule(
    records: Records,
    samples: Annotated[int | None, typer.Option(help="training completions to spend; may be left out for the wall clock")] = None,
    target: Target = None,
    gain: Gain = None,
    metric: Metric = "heldout_acc",
    model: Model = "curvature",
    where: Where = None,
    safety: Annotated[float, typer.Option(help="share of the failure clock to use, at most 1")] = 0.8,
    objective: Annotated[str, typer.Option(help="progress (most within the budgets) or wall_clock (fewest seconds to the target)")] = "progress",
    throughput: Throughput = None,
    robust: Annotated[bool, typer.Option("--robust", help="plan on the lower 95% bound of samples to failure")] = False,
    out: Annotated[Path | None, typer.Option(help="write the schedule here; an existing file is not overwritten")] = None,
    n_boot: Draws = 200,
    accept_misfit: Annotated[bool, typer.Option("--accept-misfit", help="plan even where the runs contradict a clock's law")] = False,
    settings: Settings = None,
    given: Given = None,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """Fit the clocks and turn them into a schedule, with the reason for it."""
    _free(out)
    pace = dict(_pace(pair) for pair in throughput) if throughput else None
    clocks = fitted(select(load(records, settings, given, columns), where), metric, target, gain, model, n_boot)
    if not as_json:
        show.clocks_table(clocks)
    schedule = plan(
        clocks,
        samples=samples,
        safety=safety,
        objective=objective,  # type: ignore[arg-type]
        throughput=pace,
        robust=robust,
        accept_misfit=accept_misfit,
    )
    if out is not None:
        schedule.save(out)
    if as_json:
        show.as_json(schedule.to_json())
        return
    show.line(schedule.explain())
    if out is not None:
        show.line(f"wrote {out}")


def plot_clocks(
    records: Records,
    out: Annotated[Path, typer.Option(help="picture to write (png, svg or pdf); an existing file is not overwritten")],
    target: Target = None,
    gain: Gain = None,
    metric: Metric = "heldout_acc",
    model: Model = "curvature",
    where: Where = None,
    schedule: Annotated[Path | None, typer.Option(help="schedule JSON to draw into it")] = None,
    n_boot: Draws = 50,
    settings: Settings = None,
    given: Given = None,
    columns: Columns = None,
    as_json: AsJson = False,
) -> None:
    """Draw the two clocks over batch and drift rate, with a schedule's path (extra `plot`)."""
    _free(out)
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ScheduleError(f"{out}: pictures are written as .png, .svg or .pdf")
    path = Schedule.load(schedule) if schedule else None
    clocks = fitted(select(load(records, settings, given, columns), where), metric, target, gain, model, n_boot)
    try:
        import matplotlib.pyplot as plt

        from twoclocks.plot import two_clocks
    except ImportError as error:
        raise SettingError("plotting needs the extra: pip install 'twoclocks[plot]'") from error
    figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
    two_clocks(axes, clocks, path)
    figure.savefig(out, dpi=150)
    plt.close(figure)
    show.as_json({"wrote": str(out), "runs": sorted(clocks.cells["run_id"])}) if as_json else show.line(f"wrote {out}")


def _free(out: Path | None) -> None:
    if out is not None and out.exists():
        raise ScheduleError(f"{out}: exists and is left as it is; choose another --out")
    if out is not None and not out.absolute().parent.is_dir():
        raise ScheduleError(f"{out}: no such folder; create it first")


def _pace(pair: str) -> tuple[float, float]:
    batch, _, rate = pair.partition("=")
    try:
        return float(batch), float(rate)
    except ValueError as error:
        raise SettingError(f"--throughput {pair}: expected batch=completions per second, such as 256=1200") from error
