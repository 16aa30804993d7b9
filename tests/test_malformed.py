"""Logs as they are found: every damage is a typed error that says what to do, or a repair that is said in the run's notes."""

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import twoclocks as tc
from twoclocks.errors import TwoclocksError

DATA = Path(__file__).parent / "data"
GIVEN = {"completions": 32, "group": 8, "updates_per_rollout": 4, "lr": 2e-6}
STEPS = range(1, 7)


def trl(rows):
    return json.dumps({"log_history": rows})


def history(**columns):
    return pd.DataFrame({"train/global_step": list(STEPS), "train/reward": [0.1 * k for k in STEPS], "train/learning_rate": 1e-6} | columns).to_csv(index=False)


def verl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def dump(step, prompts=2, group=4, **more):
    return verl([{"input": f"p{i // group}", "output": "x", "score": float(i % 2), "step": step, **more} for i in range(prompts * group)])


LOGGED = [{"step": k, "reward": 0.1 * k, "learning_rate": 1e-6} for k in STEPS]
ROWS = [{"step": k, "data": {"critic/score/mean": 0.1 * k, "actor/lr": 1e-6}} for k in STEPS]

# name -> (file, content, what the error must say)
REFUSED = {
    "trl empty file": ("trainer_state.json", "", "not a readable trainer state"),
    "trl truncated": ("trainer_state.json", trl(LOGGED)[:-40], "it may be truncated: use an older checkpoint's"),
    "trl binary": ("trainer_state.json", b"\x00\xff\x00\x01", "not a readable trainer state"),
    "trl no history": ("trainer_state.json", '{"global_step": 3}', "no log_history"),
    "trl history of numbers": ("trainer_state.json", '{"log_history": [1]}', "no log_history"),
    "trl empty history": ("trainer_state.json", trl([]), "no logged step"),
    "trl no steps": ("trainer_state.json", trl([{"loss": 1.0}]), "no logged step"),
    "trl only the summary": ("trainer_state.json", trl([{"step": 6, "train_runtime": 3.0}]), "no logged step"),
    "trl steps that are no numbers": ("trainer_state.json", trl([{"step": "late", "reward": 0.1}]), "no row has a step"),
    "trl only step 0": ("trainer_state.json", trl([{"step": 0, "reward": 0.1}]), "ends at step 0"),
    "trl steps past counting": ("trainer_state.json", trl([{"step": 1e20, "reward": 0.1}]), "no count of updates"),
    "trl deep nesting": ("trainer_state.json", "[" * 100_000, "not a readable trainer state"),
    "csv empty": ("a.csv", "", "not readable as csv"),
    "csv header only": ("a.csv", "train/global_step,train/reward\n", "no rows"),
    "csv binary": ("a.csv", b"\x00\xff\xfe\x01", "not readable"),
    "csv unknown columns": ("a.csv", "x,y\n1,2\n", "are no trainer's keys; say which is what: columns="),
    "csv ragged": ("a.csv", "a,b\n1,2\n1,2,3\n", "not readable as csv"),
    "csv steps all missing": ("a.csv", history(**{"train/global_step": [None] * 6}), "no row has a step"),
    "csv no step": ("a.csv", "train/reward,train/learning_rate\n0.1,1e-6\n", "keys without train/global_step"),
    "csv chart over log calls": ("a.csv", "Step,run - train/reward,run - train/entropy\n1,0.2,1.0\n", "set it to train/global_step and export again"),
    "csv NaN everywhere": ("a.csv", history(**{"train/reward": [None] * 6, "train/learning_rate": [None] * 6}), "no row has a step"),
    "gz that is none": ("a.csv.gz", "plain text", "not readable"),
    "gz truncated": ("a.csv.gz", gzip.compress(history().encode() * 99)[:-30], "it may be truncated"),
    "gz empty": ("a.jsonl.gz", b"", "no rows"),
    "parquet empty": ("a.parquet", b"", "not readable as parquet"),
    "parquet truncated": ("a.parquet", b"PAR1\x00\x00", "not readable as parquet"),
    "parquet that is text": ("a.parquet", "hello", "not readable as parquet"),
    "jsonl empty": ("a.jsonl", "", "no rows"),
    "jsonl of lists": ("a.jsonl", "[]\n[]\n", "line 1 is no JSON object"),
    "jsonl damaged inside": ("a.jsonl", '{"a": 1}\n{"a"\n{"a": 2}\n', "line 2 is not JSON"),
    "jsonl only torn": ("a.jsonl", '{"a', "no rows"),
    "jsonl not utf-8": ("a.jsonl", b'{"step": 1}\n\xff\xfe\n', "not readable"),
    "jsonl unknown keys": ("a.jsonl", '{"a": 1}\n', "are no trainer's keys"),
    "verl row without data": ("v.jsonl", verl(ROWS) + '{"step": 7}\n{"step": 8, "data": {}}\n', "line 7 is no verl row"),
    "verl data that is a list": ("v.jsonl", verl(ROWS) + '{"step": 7, "data": []}\n', "line 7 is no verl row"),
    "verl damaged inside": ("v.jsonl", verl(ROWS) + "xx\n" + verl(ROWS), "line 7 is not JSON"),
    "verl no numbers": ("v.jsonl", verl([{"step": 1, "data": {"note": "hi"}}]), "no row has a step"),
    "dump without scores inside": ("1.jsonl", dump(1) + '{"input": "p", "output": "x"}\n', "line 9 lacks score"),
    "dump of uneven groups": ("1.jsonl", dump(1) + dump(1, prompts=1, group=2), "prompts with"),
    "sqlite empty": ("a.db", b"", "no trackio database"),
    "sqlite that is text": ("a.db", "hello", "no trackio database"),
    "sqlite truncated": ("a.db", (DATA / "trackio.db").read_bytes()[:5000], "no trackio database"),
    "events that are text": ("events.out.tfevents.1", "hello", "is a trainer's"),
    "events empty": ("events.out.tfevents.1", b"", "is a trainer's"),
    "wandb that is text": ("a.wandb", "hello", "no offline run of W&B"),
    "wandb empty": ("a.wandb", b"", "no offline run of W&B"),
    "wandb head only": ("a.wandb", (DATA / "sweep-a.wandb").read_bytes()[:7], "no history rows"),
    "wandb damaged at once": ("a.wandb", (DATA / "sweep-a.wandb").read_bytes()[:7] + b"\x01" * 400, "no history rows: the file is damaged"),
    "wandb other version": ("a.wandb", b":LOG" + (DATA / "sweep-a.wandb").read_bytes()[4:], "no offline run of W&B"),
    "unknown ending": ("a.txt", "hello", "no known log format"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_says_why(tmp_path, case):
    name, content, says = REFUSED[case]
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = file.read_bytes()
    with pytest.raises(TwoclocksError) as refused:
        tc.read_runs(file, settings=GIVEN)
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    assert file.read_bytes() == before


# name -> (file, content, rewards read, what the notes must say)
FULL = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
REPAIRED = {
    "windows line ends": ("a.csv", history().replace("\n", "\r\n"), FULL, ""),
    "byte order mark": ("a.csv", b"\xef\xbb\xbf" + history().encode(), FULL, ""),
    "gzipped": ("a.csv.gz", gzip.compress(history().encode()), FULL, ""),
    "unknown keys beside": ("a.csv", history(**{"train/what": "hi"}), FULL, ""),
    "numbers as text": ("a.csv", history(**{"train/reward": [f"tensor({0.1 * k:.1f})" for k in STEPS]}), FULL, ""),
    "NaN as text": ("a.csv", history(**{"train/reward": ["NaN", "nan", "", "null", "0.5", "0.6"]}), FULL[4:], ""),
    "infinite": ("a.csv", history(**{"train/reward": ["inf", "-inf", "1e400", "0.4", "0.5", "0.6"]}), FULL[3:], ""),
    "too large for the records": ("a.csv", history(**{"train/reward": ["1e39", 0.2, 0.3, 0.4, 0.5, 0.6]}), FULL[1:], ""),
    "out of order": ("a.csv", history(**{"train/global_step": [2, 1, 3, 4, 5, 6]}), FULL[1:], "1 rows of earlier attempts"),
    "resumed": ("a.csv", history(**{"train/global_step": [1, 2, 3, 2, 3, 4]}), [0.1, 0.4, 0.5, 0.6], "2 rows of earlier attempts"),
    "resumed twice": ("a.csv", history(**{"train/global_step": [1, 2, 1, 2, 1, 2]}), [0.5, 0.6], "4 rows of earlier attempts"),
    "duplicate steps": ("a.csv", history(**{"train/global_step": [1, 1, 2, 2, 3, 3]}), [0.2, 0.4, 0.6], ""),
    "rows without a step": ("a.csv", history(**{"train/global_step": [1, None, 3, None, 5, 6]}), [0.1, 0.3, 0.5, 0.6], "2 rows without a step"),
    "negative steps": ("a.csv", history(**{"train/global_step": [-1, 1, 2, 3, 4, 5]}), FULL[1:], "1 rows without a step"),
    "one row": ("a.csv", "train/global_step,train/reward\n6,0.6\n", [0.6], ""),
    "two runs in one history": ("a.csv", history() + "\n".join(history().splitlines()[1:]) + "\n", FULL, "6 rows of earlier attempts"),
    "literal NaN in JSON": ("trainer_state.json", trl(LOGGED).replace("0.1,", "NaN,"), FULL[1:], ""),
    "null and lists": (
        "trainer_state.json",
        trl([{**r, "reward": v} for r, v in zip(LOGGED, [None, [1], {}, True, 0.5, 0.6], strict=True)]),
        [1.0, 0.5, 0.6],
        "",
    ),
    "torn last line": ("v.jsonl", verl(ROWS) + '{"step": 7, "da', FULL, ""),
    "blank lines": ("v.jsonl", verl(ROWS).replace("\n", "\n\n"), FULL, ""),
    "verl resumed": ("v.jsonl", verl([*ROWS, *ROWS[3:]]), FULL, "3 rows of earlier attempts"),
    "long": ("a.csv", "train/global_step,train/reward\n" + "".join(f"{k},0.5\n" for k in range(1, 3001)), None, "3000 rows were thinned"),
}


@pytest.mark.parametrize("case", REPAIRED)
def test_what_can_be_repaired_is_and_says_so(tmp_path, case):
    name, content, rewards, says = REPAIRED[case]
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    runs = tc.read_runs(tmp_path / name, settings=GIVEN)
    read = runs.curves["reward"].dropna().astype(float).round(6).tolist()
    assert read == rewards if rewards is not None else len(read) <= 200
    notes = " ".join(json.loads(runs.runs["config"][0])["notes"])
    assert says in notes


def test_a_killed_offline_run_is_read_as_far_as_it_goes(tmp_path):
    whole = (DATA / "sweep-a.wandb").read_bytes()
    lengths = []
    for cut in range(len(whole) - 200, len(whole) - 1400, -300):
        (tmp_path / "a.wandb").write_bytes(whole[:cut])
        lengths.append(len(tc.read_runs(tmp_path / "a.wandb", settings=GIVEN).curves))
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]
    spoiled = bytearray(whole)
    spoiled[-900] ^= 0xFF
    (tmp_path / "a.wandb").write_bytes(spoiled)
    runs = tc.read_runs(tmp_path / "a.wandb", settings=GIVEN)
    assert "the file is damaged (checksum" in json.loads(runs.runs["config"][0])["notes"][0]


def test_rows_of_a_store_that_are_no_json_are_named(tmp_path):
    shutil.copy(DATA / "trackio.db", tmp_path / "a.db")
    with sqlite3.connect(tmp_path / "a.db") as store:
        store.execute("UPDATE metrics SET metrics = '[1]' WHERE id = 3")
    store.close()
    with pytest.raises(TwoclocksError, match="row 3 of run 'sweep-a': metrics are not a JSON object"):
        tc.read_runs(tmp_path / "a.db", settings=GIVEN)


@pytest.mark.parametrize(
    ("line", "says"),
    [("1 2", "line 2 is not 'timestamp value step'"), ("now 0.5 2", ""), ("1 0.5 many", "")],
)
def test_damaged_metric_files(tmp_path, line, says):
    shutil.copytree(DATA / "mlruns", tmp_path / "mlruns")
    (file,) = (tmp_path / "mlruns").rglob("metrics/reward")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    if says:
        with pytest.raises(TwoclocksError, match=says):
            tc.read_runs(tmp_path / "mlruns", settings={"completions": 32})
    else:
        assert len(tc.read_runs(tmp_path / "mlruns", settings={"completions": 32}).runs) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"completions": 0}, "completions=0 is not a whole number of at least 1"),
        ({"completions": 3.5}, "completions=3.5 is not a whole number"),
        ({"completions": "many"}, "completions='many' is not a whole number"),
        ({"completions": np.nan}, "is not a whole number"),
        ({"group": -8}, "group=-8"),
        ({"lr": 0.0}, "lr=0.0 is not a positive number"),
        ({"lr": "fast"}, "lr='fast' is not a positive number"),
        ({"clip_low": -0.2}, "clip_low=-0.2 is not a positive number"),
        ({"seed": 1.5}, "seed=1.5"),
    ],
)
def test_settings_of_the_wrong_kind(tmp_path, given, says):
    (tmp_path / "a.csv").write_text(history())
    with pytest.raises(TwoclocksError, match=says):
        tc.read_runs(tmp_path / "a.csv", settings=GIVEN | given)
    table = pd.DataFrame([{"run": "a", **GIVEN, **given}])
    if not pd.isna(next(iter(given.values()))):
        with pytest.raises(TwoclocksError, match=says):
            tc.read_runs(tmp_path / "a.csv", settings=table)


def test_a_folder_of_many_things_gives_its_logs(tmp_path):
    """Completions, settings and notes lie beside the logs of a real output folder."""
    (tmp_path / "run/checkpoint-6").mkdir(parents=True)
    (tmp_path / "run/checkpoint-6/trainer_state.json").write_text(trl(LOGGED))
    (tmp_path / "run/README.md").write_text("notes")
    pd.DataFrame({"prompt": ["a"], "completion": ["b"]}).to_parquet(tmp_path / "run/completions_00006.parquet")
    pd.DataFrame([{"run": "run", **GIVEN}]).to_csv(tmp_path / "runs.csv", index=False)
    runs = tc.read_runs(tmp_path, settings=tmp_path / "runs.csv")
    assert len(runs.runs) == 1 and runs.runs["batch"].tolist() == [32]
    (tmp_path / "run/checkpoint-6/trainer_state.json").unlink()
    with pytest.raises(TwoclocksError, match=r"no log found; left out: .*are no trainer's keys"):
        tc.read_runs(tmp_path, settings=GIVEN)
