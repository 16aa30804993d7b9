"""Offline runs of W&B (`wandb/offline-run-*/run-*.wandb`), read without the wandb package: history rows and the run's name.

The file is a LevelDB log: a 7-byte head, then blocks of 32 KiB of fragments (checksum, length, kind), whose payloads are
protocol-buffer messages. Only the fields used here are decoded. A run that was killed leaves the file open; it is read as
far as it goes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from twoclocks.errors import RecordsError
from twoclocks.importers import stores
from twoclocks.importers.jsonl import MAX_BYTES
from twoclocks.importers.log import Log

HEAD = b":W&B"
BLOCK, FRAGMENT = 32768, struct.Struct("<IHB")
FULL, FIRST, LAST = 1, 2, 4
# Field numbers of wandb's Record, HistoryRecord, HistoryItem and RunRecord
HISTORY, RUN = 2, 17
ITEM = 1
KEY, NESTED, BOOLEAN, INTEGER, NUMBER, TEXT, VALUE_JSON = 1, 2, 4, 5, 6, 7, 16
RUN_ID, DISPLAY_NAME = 1, 8


def matches(path: Path) -> bool:
    """Whether a path is an offline run."""
    return path.suffix == ".wandb"


def read(path: Path) -> list[Log]:
    """The run of one file.

    Raises
    ------
    RecordsError
        If it is no offline run, or holds no history of a trainer.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise RecordsError(f"{path}: larger than {MAX_BYTES} bytes; sync the run and export its history")
        data = path.read_bytes()
    except OSError as error:
        raise RecordsError(f"{path}: not readable ({error})") from error
    if data[:4] != HEAD:
        raise RecordsError(f"{path}: no offline run of W&B; expected a file that begins with {HEAD.decode()}")
    rows: list[dict[str, Any]] = []
    name, notes = path.stem, list[str]()
    try:
        for record in _records(data):
            for number, value in _fields(record):
                if number == HISTORY:
                    rows.append(dict(_item(item) for kind, item in _fields(value) if kind == ITEM))
                elif number == RUN:
                    told = dict(_fields(value))
                    name = bytes(told.get(DISPLAY_NAME) or told.get(RUN_ID) or name.encode()).decode(errors="replace")
    except _Damaged as error:
        notes.append(f"the file is damaged ({error}); the {len(rows)} rows before were read")
    if not rows:
        raise RecordsError(f"{path}: no history rows{': ' + notes[0] if notes else ''}; sync the run and export its history as CSV")
    return [stores.log_of(pd.DataFrame(rows), name=name, store="wandb", where=str(path), notes=notes, store_step="_step")]


class _Damaged(Exception):
    """What the file holds from here on is not what was written."""


def _records(data: bytes) -> Iterator[bytes]:
    """Payloads, their fragments joined; ends where the writer stopped."""
    at, parts = 7, list[bytes]()
    while at + FRAGMENT.size <= len(data):
        room = BLOCK - at % BLOCK
        if room < FRAGMENT.size:  # the rest of a block too short for a fragment is padding
            at += room
            continue
        checksum, length, kind = FRAGMENT.unpack_from(data, at)
        payload = data[at + FRAGMENT.size : at + FRAGMENT.size + length]
        if len(payload) < length:
            return  # cut off while it was written
        if zlib.crc32(payload, zlib.crc32(bytes([kind]))) != checksum:
            raise _Damaged(f"checksum at byte {at}")
        at += FRAGMENT.size + length
        parts = [payload] if kind in (FULL, FIRST) else [*parts, payload]
        if kind in (FULL, LAST):
            yield b"".join(parts)


def _fields(message: Any) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protocol-buffer message: bytes for nested ones and text, ints for numbers."""
    if not isinstance(message, bytes):
        raise _Damaged("a message where a number stands")
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise _Damaged(f"wire type {kind}")
        if at + size > len(message):
            raise _Damaged("a field longer than its message")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
    raise _Damaged("a number without end")


def _item(message: bytes) -> tuple[str, Any]:
    """(key, value) of one history item; releases differ in whether values are JSON or typed."""
    keys, value = list[str](), None
    for number, found in _fields(message):
        if number in (KEY, NESTED):
            keys.append(_text(found))
        elif number == VALUE_JSON:
            try:
                value = json.loads(_text(found))
            except ValueError as error:
                raise _Damaged(f"a value that is no JSON ({error})") from error
        elif number == TEXT:
            value = _text(found)
        elif number == BOOLEAN:
            value = bool(found)
        elif number == INTEGER:
            value = (found >> 1) ^ -(found & 1)  # zigzag
        elif number == NUMBER:
            value = struct.unpack("<d", found)[0]
    return "/".join(keys), value


def _text(found: Any) -> str:
    if not isinstance(found, bytes):
        raise _Damaged("a number where text stands")
    return found.decode(errors="replace")
