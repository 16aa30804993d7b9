"""Hypothesis against every importer: whatever a file holds, runs or a typed error come out, and the file stays as it was."""

import json
import sqlite3
import struct
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import twoclocks as tc
from twoclocks.errors import TwoclocksError
from twoclocks.importers import stores

DATA = Path(__file__).parent / "data"
GIVEN = {"completions": 32, "group": 8, "updates_per_rollout": 4, "lr": 2e-6}
FUZZ = settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=8),
    st.sampled_from(["NaN", "tensor(0.5)", "1e400", "-Infinity", "0.5"]),
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6)
keys = st.sampled_from(sorted(stores.known_keys() | {"step", "reward", "learning_rate", "eval_reward", "_step", "data", "input", "output", "score"}))
rows = st.lists(st.dictionaries(keys | st.text(max_size=6), values, max_size=8), max_size=12)


def outcome(name, content, **more):
    """Read a file of this content: runs that keep the schema, or a typed error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        try:
            runs = tc.read_runs(file, settings=GIVEN, **more)
        except TwoclocksError as error:
            assert len(str(error)) > 20
            return None
        finally:
            assert file.read_bytes() == content
        assert len(runs.runs) and runs.curves["samples"].max() > 0
        return runs


@FUZZ
@given(rows, st.booleans())
def test_trainer_states(found, truncated):
    text = json.dumps({"log_history": found})
    outcome("trainer_state.json", (text[: len(text) // 2] if truncated else text).encode())


@FUZZ
@given(rows, st.booleans())
def test_jsonl(found, torn):
    text = "".join(json.dumps(row) + "\n" for row in found)
    outcome("log.jsonl", (text[:-3] if torn else text).encode())


@FUZZ
@given(st.lists(st.fixed_dictionaries({"step": scalars, "data": st.dictionaries(keys, scalars, max_size=5)}), max_size=10))
def test_verl(found):
    outcome("exp.jsonl", "".join(json.dumps(row) + "\n" for row in found).encode())


@FUZZ
@given(st.lists(st.fixed_dictionaries({"input": scalars, "output": scalars, "score": scalars}, optional={"step": scalars}), max_size=10))
def test_verl_rollouts(found):
    outcome("1.jsonl", "".join(json.dumps(row) + "\n" for row in found).encode())


@FUZZ
@given(st.lists(keys | st.text(max_size=5), min_size=1, max_size=6, unique=True), st.lists(st.lists(scalars, min_size=1, max_size=6), max_size=8))
def test_csv(header, lines):
    text = "\n".join(",".join(map(str, line)) for line in [header, *lines])
    outcome("a.csv", text.encode(errors="replace"))
    outcome("a.csv", text.encode(errors="replace"), columns={"update": header[0], "reward": header[-1]})


@FUZZ
@given(st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=4)), scalars), max_size=8), rows)
def test_trackio(steps, found):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        with sqlite3.connect(path) as store:
            store.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)")
            for (name, step), row in zip(steps, found, strict=False):
                told = None if isinstance(step, int) and abs(step) > 2**62 else step
                store.execute("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('2026', ?, ?, ?)", (name, told, json.dumps(row)))
        store.close()
        content = path.read_bytes()
    outcome("x.db", content)


@FUZZ
@given(
    st.binary(max_size=300), st.sampled_from(["trainer_state.json", "a.jsonl", "a.csv", "a.csv.gz", "a.parquet", "a.db", "a.wandb", "events.out.tfevents.1"])
)
def test_bytes(content, name):
    outcome(name, content)


@pytest.mark.parametrize("name", ["sweep-a.wandb", "trackio.db"])
@FUZZ
@given(data=st.data())
def test_bytes_changed_in_a_good_store(name, data):
    content = bytearray((DATA / name).read_bytes())
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), min_size=1, max_size=6)):
        content[at] = byte
    outcome(name.replace("sweep-a", "a"), bytes(content[: data.draw(st.integers(0, len(content)))]))


@FUZZ
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_wandb_records_with_sound_checksums(payloads):
    """Protocol buffers of any content behind checksums that hold."""
    body = b"".join(struct.pack("<IHB", zlib.crc32(p, zlib.crc32(b"\x01")), len(p), 1) + p for p in payloads)
    outcome("a.wandb", b":W&B\xe1\xbe\x00" + body)


@FUZZ
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=6))
def test_mlflow_metric_lines(lines):
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        (run / "metrics").mkdir(parents=True)
        (run / "meta.yaml").write_text("run_id: a\n")
        (run / "metrics/reward").write_text("\n".join(lines))
        try:
            tc.read_runs(run, settings=GIVEN)
        except TwoclocksError as error:
            assert len(str(error)) > 20


@FUZZ
@given(st.binary(max_size=200))
def test_live_run_folders(content):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.json").write_text('{"run_id": "a", "batch": 32, "group": 8, "lr": 1e-6}')
        (Path(folder) / "curve.jsonl").write_bytes(content)
        try:
            tc.read_runs(folder, settings=None)
        except TwoclocksError as error:
            assert len(str(error)) > 20


@FUZZ
@given(st.dictionaries(st.sampled_from(["completions", "prompts", "group", "updates_per_rollout", "lr", "seed", "clip_low", "testbed", "batch"]), scalars))
def test_settings(facts):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.csv").write_text("train/global_step,train/reward\n1,0.1\n2,0.2\n")
        try:
            tc.read_runs(Path(folder) / "a.csv", settings=facts)
        except TwoclocksError as error:
            assert len(str(error)) > 20
