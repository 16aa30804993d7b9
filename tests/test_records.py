import json
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.planted import curve_rows, run_row
from twoclocks import records
from twoclocks.errors import RecordsError
from twoclocks.records import MAX_CURVE_ROWS, Runs
from twoclocks.schema import CURVE_COLUMNS, schema_markdown

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path):
    samples = np.arange(0, 10) * 32
    runs = Runs(pd.DataFrame([run_row(run_id="a"), run_row(run_id="b", seed=1, clip_low=None, clip_high=None)]),
                pd.concat([curve_rows(r, 32, samples, samples / 1000) for r in "ab"], ignore_index=True))  # fmt: skip
    records.write(runs, tmp_path, "first")
    return tmp_path


def test_written_records_read_back(folder):
    read = records.read(folder)
    assert list(read.runs["run_id"]) == ["a", "b"]
    n, y, w = read.curve("a", "heldout_acc")
    assert (n[-1], y[-1], w[-1]) == (288, pytest.approx(0.288, rel=1e-6), 1)
    assert read.runs["clip_low"].isna().tolist() == [False, True]
    assert not list(folder.rglob("*.tmp"))


def test_select_by_value_list_null_and_rounded_float(folder):
    read = records.read(folder)
    assert list(read.select(clip_low=0.2).runs["run_id"]) == ["a"]
    assert list(read.select(clip_low=None).runs["run_id"]) == ["b"]
    assert set(read.select(seed=[0, 1]).curves["run_id"]) == {"a", "b"}
    assert set(read.select(clip_low=[None, 0.2]).runs["run_id"]) == {"a", "b"}
    with pytest.raises(RecordsError, match="no column 'clip'"):
        read.select(clip=None)


def test_a_sweep_is_never_rewritten(folder):
    before = (folder / "runs.parquet").read_bytes()
    with pytest.raises(RecordsError, match="never rewritten"):
        records.write(records.read(folder), folder, "first")
    with pytest.raises(RecordsError, match="run_id a appears twice"):
        records.write(records.read(folder), folder, "second")
    assert (folder / "runs.parquet").read_bytes() == before
    assert not (folder / "curves/second.parquet").exists()


def damage(folder, change):
    table = pd.read_parquet(folder / "runs.parquet")
    change(table).to_parquet(folder / "runs.parquet")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop(columns="lr"), r"runs.parquet: missing column\(s\) lr"),
        (lambda t: t.assign(schema_version=7), "schema_version .*7.* reads version 1"),
        (lambda t: t.assign(lr=[1e-6, np.nan]), "row 1, column lr: null or NaN"),
        (lambda t: t.assign(lr=[1e-6, np.inf]), "row 1, column lr"),
        (lambda t: t.assign(lr=["1e-6", "fast"]), "'fast' is not a number"),
        (lambda t: t.assign(batch=[32, -1]), "row 1: batch, group"),
        (lambda t: t.assign(status="done"), "'done' is not one of finished"),
        (lambda t: t.assign(run_id=["a", "../b"]), "must match"),
        (lambda t: t.assign(sweep="../../elsewhere"), "sweep '../../elsewhere' must match"),
        (lambda t: t.assign(batch=["32", "many"]), "column batch should be int"),
        (lambda t: t.assign(seconds=[1.0, -np.inf]), "row 1, column seconds: infinite"),
        (lambda t: t.assign(batch=[32, 32.5]), "column batch should be int"),
    ],
)
def test_bad_tables_name_file_row_column_rule(folder, change, says):
    damage(folder, change)
    with pytest.raises(RecordsError, match=says) as error:
        records.read(folder)
    assert str(folder / "runs.parquet") in str(error.value)


def test_truncated_and_absent_files(folder):
    path = folder / "runs.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RecordsError, match="not a readable parquet file"):
        records.read(folder)
    path.unlink()
    with pytest.raises(RecordsError, match="no such file"):
        records.read(folder)


def test_a_curve_of_an_unknown_run_is_refused(folder):
    damage(folder, lambda t: t.iloc[:1])
    with pytest.raises(RecordsError, match="run_id b is not in"):
        records.read(folder)


def live_row(update, **values):
    row = {c.name: None for c in CURVE_COLUMNS}
    counters = {"run_id": "a", "attempt": 0, "update": update, "samples": 32 * update, "samples_generated": 128, "rollout": 1, "batch": 32}
    return row | counters | values


def test_a_later_attempt_supersedes_and_a_torn_last_line_is_dropped(tmp_path):
    path = tmp_path / "curve.jsonl"
    records.append_jsonl(path, [live_row(u, reward=0.1) for u in (1, 2, 3, 4)])
    records.append_jsonl(path, [live_row(u, attempt=1, reward=0.9) for u in (3, 4)])
    with path.open("a") as file:
        file.write('{"run_id": "a", "upd')
    curve = records.read_curve(path)
    assert curve["update"].tolist() == [1, 2, 3, 4]
    assert curve["reward"].tolist() == [0.1, 0.1, 0.9, 0.9]


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path):
    path = tmp_path / "curve.jsonl"
    path.write_text("nonsense\n" + json.dumps(live_row(1)) + "\n")
    with pytest.raises(RecordsError, match="line 1 is not JSON"):
        records.read_curve(path)


def test_thinning_keeps_evaluations_and_window_means():
    count = 3000
    curve = pd.DataFrame([live_row(u, reward=float(u), grad_norm=1.0 if u % 2 else None) for u in range(1, count + 1)])
    evaluated = [100, 101, 2500]
    curve.loc[[u - 1 for u in evaluated], "heldout_acc"] = [0.1, 0.2, 0.3]
    thinned = records.thin(curve)
    assert len(thinned) <= MAX_CURVE_ROWS
    assert thinned.loc[thinned["heldout_acc"].notna(), "update"].tolist() == evaluated
    windows = np.diff(np.concatenate([[0], thinned["update"]]))
    assert (thinned["reward"] * windows).sum() == pytest.approx(count * (count + 1) / 2)
    assert set(thinned["grad_norm"].dropna()) == {1.0}


def test_windowed_columns_sit_at_the_policy_they_describe():
    """Four updates of 32 a rollout; the last row stands for updates 3 to 10, in which rollouts 2 and 3 began."""
    rows = [(1, 1, 0.5), (2, 1, None), (10, 3, 0.7)]
    curve = pd.DataFrame([live_row(u, rollout=r, samples_generated=128 * r, reward=y, drift_k3=0.1) for u, r, y in rows])
    runs = Runs(pd.DataFrame([run_row(run_id="a")]), curve)
    n, _, w = runs.curve("a", "drift_k3")
    assert n.tolist() == [0, 32, 32 * 5.5]  # updates 3..10 began at 2..9 times 32
    assert w.tolist() == [32, 32, 8 * 32]
    switched = pd.concat([curve, pd.DataFrame([live_row(12, batch=2048, samples=320 + 2 * 2048, drift_k3=0.1)])], ignore_index=True)
    n, _, w = Runs(runs.runs, switched).curve("a", "drift_k3")
    assert (n[-1], w[-1]) == (320 + 1024, 4096)  # two updates of 2048, begun at 320 and 2368
    n, _, w = runs.curve("a", "reward")
    assert n.tolist() == [0, 192]  # rollouts 2 and 3 began at 128 and 256
    assert w.tolist() == [128, 256]


def test_unknown_metric_is_refused(folder):
    with pytest.raises(RecordsError, match="not a measured curve column"):
        records.read(folder).curve("a", "accuracy")


def test_committed_records_are_light_valid_and_documented():
    results = ROOT / "experiments/results"
    read = records.read(results)
    finished = read.select(status="finished", device="NVIDIA H200").runs
    assert len(finished) >= 20
    for column in ("config", "versions", "git_sha"):
        assert finished[column].str.len().min() >= 2
    assert read.curves.groupby("run_id").size().max() <= MAX_CURVE_ROWS
    assert (results / "SCHEMA.md").read_text() == schema_markdown()
    listing = ["git", "ls-files", "-z", "experiments/results", "experiments/models"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert sum((ROOT / name).stat().st_size for name in tracked.split("\0") if name) < 16 * 2**20
