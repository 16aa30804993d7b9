"""Options that several commands share, and reading what they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from twoclocks.errors import RecordsError
from twoclocks.fitting import Clocks, fit
from twoclocks.importers import read_runs
from twoclocks.records import Runs
from twoclocks.schema import RUN_COLUMNS

Records = Annotated[Path, typer.Argument(help="records folder (runs.parquet and curves/*.parquet), or logs of any trainer: a file or a folder")]
Settings = Annotated[Path | None, typer.Option("--settings", help="table with a column `run` and what the logs do not say: completions, group, lr ...")]
Given = Annotated[list[str] | None, typer.Option("--set", help="what the logs do not say, for every run: completions=32, group=8 ...; may repeat")]
Columns = Annotated[list[str] | None, typer.Option("--column", help="canonical=column of a table that is no trainer's: samples=seen; may repeat")]
Where = Annotated[list[str] | None, typer.Option("--where", help="keep runs with column=value; may repeat; value null for no clip")]
Metric = Annotated[str, typer.Option(help="curve column where more is better")]
Target = Annotated[list[float] | None, typer.Option(help="level of the metric that counts as reached; may repeat, the first is planned for")]
Gain = Annotated[list[float] | None, typer.Option(help="instead of --target: rise above each run's own start; may repeat")]
Model = Annotated[str, typer.Option(help="what larger batches lose to: curvature, saturation or both")]
Threshold = Annotated[float | None, typer.Option(help="one run only: level of its drift meter to forecast")]
Draws = Annotated[int, typer.Option("--n-boot", min=2, help="bootstrap draws behind the intervals")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
NAMES = ("testbed", "model", "task")  # settings that are text


def load(path: Path, settings: Path | None, given: list[str] | None, columns: list[str] | None = None) -> Runs:
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
            facts[name] = value
        if name not in NAMES and isinstance(facts[name], str):
            raise RecordsError(f"--set {pair}: {value!r} is not a number")
    mapping = dict(_pair("--column", pair) for pair in columns) if columns else None
    return read_runs(path, settings=settings if settings is not None else facts, columns=mapping)


def _pair(option: str, text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (sign and name and value):
        raise RecordsError(f"{option} {text}: expected name=value")
    return name, value


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


def fitted(runs: Runs, metric: str, target: list[float] | None, gain: list[float] | None, model: str, n_boot: int, threshold: float | None = None) -> Clocks:
    """Clocks as the options ask for them."""
    return fit(runs, metric=metric, target=target or None, gain=gain or None, model=model, n_boot=n_boot, threshold=threshold)  # type: ignore[arg-type]
