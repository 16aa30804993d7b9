"""JSON lines, gzipped or not, read with their line numbers; a torn last line is what a killed writer leaves, and is left out."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twoclocks.errors import RecordsError

SUFFIXES = (".jsonl", ".jsonl.gz")
MAX_BYTES = 4 << 30


def stem(path: Path) -> str:
    """A file's name without the endings of its format; a run's name may hold dots."""
    name = path.name.removesuffix(".gz")
    for ending in (".csv", ".jsonl", ".parquet"):
        name = name.removesuffix(ending)
    return name or "run"


def text(path: Path) -> str:
    """The text of a file, its gzip undone and Windows line ends made plain.

    Raises
    ------
    RecordsError
        If it is absent, too large, damaged, or not UTF-8.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RecordsError(f"{path}: larger than {MAX_BYTES} bytes; import part of it")
        opened = gzip.open if path.name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig", newline=None) as file:
            return str(file.read())
    except (OSError, EOFError, ValueError) as error:  # ValueError: not UTF-8; EOFError: cut gzip
        raise RecordsError(f"{path}: not readable ({type(error).__name__}: {error}); it may be truncated: fetch it again") from error
    except Exception as error:
        if type(error).__module__ == "zlib":
            raise RecordsError(f"{path}: not readable ({error}); it may be truncated: fetch it again") from error
        raise


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of every line.

    Raises
    ------
    RecordsError
        If a line other than the last is no JSON object, or there is none.
    """
    lines = [(number, line) for number, line in enumerate(text(path).split("\n"), start=1) if line.strip()]
    found = 0
    for number, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number < lines[-1][0]:
                raise RecordsError(f"{path}: line {number} is not JSON ({error}); remove the damaged line") from error
            continue
        if not isinstance(row, dict):
            raise RecordsError(f"{path}: line {number} is no JSON object; expected one a line")
        found += 1
        yield number, row
    if not found:
        raise RecordsError(f"{path}: no rows")


def first_row(path: Path) -> dict[str, Any] | None:
    """The first line of a JSON-lines file if it is an object, else None."""
    if not path.name.endswith(SUFFIXES):
        return None
    try:
        opened = gzip.open if path.name.endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig") as file:
            row = json.loads(file.readline(1 << 22))
    except Exception:  # whatever is wrong with it, the reader says so
        return None
    return row if isinstance(row, dict) else None
