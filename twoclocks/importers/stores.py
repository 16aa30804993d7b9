"""The trainers whose keys a store may hold, and a log from a store's table."""

from __future__ import annotations

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import nemo_rl, open_instruct, openrlhf, prime_rl, trl, verl
from twoclocks.importers.dialects import recognised
from twoclocks.importers.log import Log

DIALECTS = (trl.PREFIXED, verl.DIALECT, openrlhf.DIALECT, open_instruct.DIALECT, nemo_rl.DIALECT, prime_rl.DIALECT)


def known_keys() -> set[str]:
    """Every key that some trainer logs under a fixed name."""
    return {key for dialect in DIALECTS for key in (*dialect.names, *dialect.axes, *dialect.marks)}


def log_of(table: pd.DataFrame, *, name: str, store: str, where: str, notes: list[str], store_step: str) -> Log:
    """The run in a store's table, whichever trainer wrote it.

    Parameters
    ----------
    store_step : str
        Column with the store's own step.

    Raises
    ------
    RecordsError
        If no trainer logs such keys, or the one that does logged no step.
    """
    keys = [str(c) for c in table.columns if c != store_step]
    dialect = recognised(DIALECTS, keys)
    if dialect is None:
        shown = ", ".join(keys[:6])
        raise RecordsError(
            f"{where}: run {name!r}: columns {shown} ... are no trainer's keys; say which is what: "
            "columns={'update': ..., 'reward': ..., 'lr': ...} (one of update, rollout or samples is needed)"
        )
    log = dialect.log(table, name=name, source=dialect.name if dialect.name != "trl" else store, where=where, notes=notes, store_step=store_step)
    if log is None:
        raise RecordsError(f"{where}: run {name!r}: {dialect.name} keys without {' or '.join(dialect.axes)}; export the run with that column")
    return log
