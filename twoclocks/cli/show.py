"""What commands print: tables and plain lines for people, JSON for machines."""

from __future__ import annotations

import json
import math
from typing import Any

from rich.console import Console
from rich.table import Table

from twoclocks.fitting import Clocks
from twoclocks.records import Runs

console = Console()


def line(text: str) -> None:
    """Plain text: names from logs are data, never markup."""
    console.print(text, markup=False, highlight=False)


def as_json(data: Any, indent: int | None = 1) -> None:
    """JSON on one document; what is not finite is null."""
    print(json.dumps(plain(data), indent=indent))  # noqa: T201


def plain(data: Any) -> Any:
    """Plain JSON types, numpy's scalars undone."""
    if isinstance(data, dict):
        return {str(k): plain(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [plain(v) for v in data]
    if hasattr(data, "item"):
        data = data.item()
    return None if isinstance(data, float) and not math.isfinite(data) else data


def runs_table(runs: Runs, title: str) -> None:
    """How many runs of which kind."""
    line(title)
    table = Table()
    for name in ("testbed", "sweep", "device", "status", "runs"):
        table.add_column(name)
    for key, count in runs.runs.groupby(["testbed", "sweep", "device", "status"]).size().items():
        table.add_row(*map(str, key), str(count))
    console.print(table)


def clocks_table(clocks: Clocks) -> None:
    """Fitted clocks, the models side by side, and what is open; a single run's forecast instead."""
    if clocks.forecast is not None:
        line(str(clocks.forecast))
        return
    line(f"{clocks.metric} to {clocks.target:g} (a gain of {clocks.gain:.3g}), {len(clocks.cells)} runs, {clocks.level:.0%} intervals by {clocks.intervals}")
    table = Table()
    for name in ("clock", "parameter", "value", "low", "high"):
        table.add_column(name, justify="left" if name in ("clock", "parameter") else "right")
    notes = []
    for row in clocks.summary().itertuples():
        unknown = row.parameter == "unidentified"
        table.add_row(str(row.clock), str(row.parameter), *(["", "", ""] if unknown else [f"{float(v):.4g}" for v in (row.value, row.low, row.high)]))
        if row.note:
            notes.append(f"{row.clock} clock unidentified: {row.note}" if unknown else f"{row.parameter}: {row.note}")
    console.print(table)
    line(clocks.collapses)
    if len(clocks.models):
        models = Table(title="progress models")
        for name in ("model", "parameters", "AIC above best", "log likelihood of held-out cells"):
            models.add_column(name, justify="left" if name == "model" else "right")
        for row in clocks.models.itertuples():
            models.add_row(str(row.model), str(row.parameters), f"{row.aic_above_best:.1f}", f"{row.heldout:.1f}")
        console.print(models)
    for law, verdict in clocks.laws().items():
        line(f"{law}: {verdict}")
    for text in [*notes, *(f"warning: {w}" for w in clocks.warnings), *clocks.remarks]:
        line(text)
