import gzip
import json
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import twoclocks as tc
from twoclocks import importers
from twoclocks.errors import RecordsError, TwoclocksError
from twoclocks.importers.log import number

DATA = Path(__file__).parent / "data"
SIZE = {"completions": 32, "group": 8, "updates_per_rollout": 4, "lr": 2e-6}


def curve(runs, column):
    rows = runs.curves.dropna(subset=[column])
    return rows["samples"].tolist(), rows[column].astype(float).round(6).tolist()


def state(rows, **more):
    return json.dumps({"global_step": 9, "log_history": [{"step": k, "epoch": 0.1, **row} for k, row in rows], **more})


@pytest.fixture
def checkpoint(tmp_path):
    def write(rows, run="sweep-a", step=9, text=None):
        folder = tmp_path / run / f"checkpoint-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trainer_state.json").write_text(state(rows) if text is None else text)
        return tmp_path / run

    return write


LOGGED = [(k, {"loss": 0.0, "learning_rate": 1e-6 * min(k, 2), **({"reward": 0.1 * k} if k % 2 else {})}) for k in range(1, 6)]


# -- TRL ------------------------------------------------------------------------------------------------------------


def test_a_real_trl_run_is_read_back(tmp_path):
    """The trainer state that TRL itself wrote, sample clock and drift included: nothing has to be given but the group."""
    from tests import trainers as rig
    from twoclocks import schedule as schedules
    from twoclocks.trainers import ScheduledGRPOTrainer

    made = rig.trainer(
        ScheduledGRPOTrainer, tmp_path / "run", schedule=schedules.constant(rig.setting(8), 64),
        fields={"per_device_train_batch_size": 4, "num_generations": 4, "save_strategy": "steps", "save_steps": 4},
    )  # fmt: skip
    made.train()
    runs = tc.read_runs(tmp_path / "run", settings={"group": 4, "updates_per_rollout": 2})
    assert len(runs.runs) == 1
    row = runs.runs.iloc[0]
    assert (row["batch"], row["samples_done"], row["lr"]) == (8, 64, 1e-3)
    assert runs.curves["samples"].tolist() == [8 * k for k in range(1, 9)]
    assert curve(runs, "drift_k3")[1] == pytest.approx([r["twoclocks/drift_k3"] for r in made.state.log_history if "loss" in r], abs=1e-6)
    assert "checkpoint-4/trainer_state.json: the beginning of the same run, left out" in json.loads(row["config"])["notes"][0]


def test_sparse_rows_stay_sparse(checkpoint):
    runs = tc.read_runs(checkpoint(LOGGED), settings=SIZE)
    assert curve(runs, "reward") == ([32, 96, 160], [0.1, 0.3, 0.5])
    assert runs.curves["reward"].isna().sum() == 2
    assert runs.curves["rollout"].tolist() == [1, 1, 1, 1, 2]


def test_the_peak_learning_rate_is_the_runs(checkpoint):
    runs = tc.read_runs(checkpoint(LOGGED), settings={k: v for k, v in SIZE.items() if k != "lr"})
    assert runs.runs["lr"].tolist() == [2e-6]


def test_checkpoints_of_one_run_are_one_run(checkpoint):
    checkpoint(LOGGED[:2], step=2)
    folder = checkpoint(LOGGED, step=5)
    runs = tc.read_runs(folder, settings=SIZE)
    assert len(runs.runs) == 1 and len(runs.curves) == 5
    other = checkpoint([(k, {**row, "learning_rate": 9e-6}) for k, row in LOGGED], run="sweep-b")
    assert len(tc.read_runs([folder, other], settings=SIZE).runs) == 2


def test_odd_values_are_numbers_or_not_measured(checkpoint):
    rows = [(k, {"learning_rate": 1e-6, "reward": v}) for k, v in enumerate(["NaN", None, "tensor(0.5, device='cuda:0')", "0.25", float("nan")], start=1)]
    assert curve(tc.read_runs(checkpoint(rows), settings=SIZE), "reward") == ([96, 128], [0.5, 0.25])
    assert np.isnan(number("junk")) and number("tensor(2)") == 2 and number(True) == 1 and np.isnan(number([1]))


# -- W&B ------------------------------------------------------------------------------------------------------------


def test_wandb_history_uses_the_global_step_and_joins_evaluations(tmp_path):
    pd.DataFrame(
        {
            "_step": range(6),
            "_runtime": [1.0, 2, 3, 4, 5, 6],
            "train/global_step": [1, 1, 2, 3, 3, 4],
            "train/reward": [0.1, None, None, 0.3, None, 0.4],
            "train/learning_rate": [1e-6] * 6,
            "eval/reward": [None, 0.5, None, None, 0.6, None],
        }
    ).to_csv(tmp_path / "history.csv", index=False)
    runs = tc.read_runs(tmp_path / "history.csv", settings={"prompts": 4, "group": 8})
    assert curve(runs, "reward") == ([32, 96, 128], [0.1, 0.3, 0.4])
    assert curve(runs, "heldout_acc") == ([32, 96], [0.5, 0.6])
    assert runs.runs["seconds"].tolist() == [6.0]


def test_a_resumed_run_keeps_the_later_attempt_and_says_so(tmp_path):
    steps, reward = [1, 2, 3, 4, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.33, 0.44, 0.55]
    pd.DataFrame({"train/global_step": steps, "train/reward": reward, "train/learning_rate": 1e-6}).to_parquet(tmp_path / "h.parquet")
    runs = tc.read_runs(tmp_path / "h.parquet", settings=SIZE)
    assert curve(runs, "reward") == ([32, 64, 96, 128, 160], [0.1, 0.2, 0.33, 0.44, 0.55])
    assert "2 rows of earlier attempts" in json.loads(runs.runs["config"][0])["notes"][0]


def test_a_chart_holds_many_runs_and_needs_the_right_axis(tmp_path):
    chart = pd.DataFrame({"train/global_step": [1, 2, 3]})
    for run, scale in (("lr 1e-6", 1.0), ("lr 2e-6", 2.0)):
        chart[f"{run} - train/reward"] = [0.1 * scale, 0.2 * scale, None]
        chart[f"{run} - train/reward__MIN"] = 0.0
        chart[f"{run} - train/learning_rate"] = 1e-6 * scale
    chart.to_csv(tmp_path / "chart.csv", index=False)
    runs = tc.read_runs(tmp_path / "chart.csv", settings=SIZE | {"lr": 1e-6})
    assert len(runs.runs) == 2
    assert runs.runs["run_id"].str.match("lr-[12]e-6-").all()
    chart.rename(columns={"train/global_step": "Step"}).to_csv(tmp_path / "step.csv", index=False)
    with pytest.raises(RecordsError, match="set it to train/global_step and export again"):
        tc.read_runs(tmp_path / "step.csv", settings=SIZE)


# -- verl -----------------------------------------------------------------------------------------------------------


def test_verl_steps_are_rollouts(tmp_path):
    rows = [
        {"step": k, "data": {"training/global_step": k, "critic/score/mean": 0.1 * k, "actor/lr": 1e-6, "actor/entropy_loss": 1.5, "timing_s/step": 2.0}}
        for k in range(1, 5)
    ]
    rows[1]["data"]["val-core/math/acc/mean@8"] = 0.4
    (tmp_path / "exp.jsonl").write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 5, "da')
    runs = tc.read_runs(tmp_path / "exp.jsonl", settings={"prompts": 4, "group": 8, "updates_per_rollout": 4})
    assert curve(runs, "reward") == ([128, 256, 384, 512], [0.1, 0.2, 0.3, 0.4])
    assert curve(runs, "heldout_acc") == ([256], [0.4])
    assert runs.curves["entropy"].tolist() == [1.5] * 4
    assert runs.curves["seconds"].tolist() == [2, 4, 6, 8]
    kept = json.loads(runs.runs["config"][0])
    assert kept["source"] == "verl" and "mean over mini-batches" in kept["aggregation"]["lr"]


# -- trainers in any store ------------------------------------------------------------------------------------------

# trainer -> (columns of three steps, what one step is worth in completions with 32 an update and 4 updates a rollout)
SPOKEN = {
    "verl": ({"training/global_step": [1, 2, 3], "critic/score/mean": [0.1, 0.2, 0.3], "actor/lr": 1e-6, "actor/ppo_kl": 0.01, "actor/pg_loss": 0.0}, 128),
    "openrlhf": ({"train/global_step": [1, 2, 3], "train/reward": [0.1, 0.2, 0.3], "train/actor_lr": 1e-6, "train/ppo_kl": 0.01}, 128),
    "open-instruct": ({"training_step": [1, 2, 3], "episode": [128, 256, 384], "scores": [0.1, 0.2, 0.3], "lr": 1e-6, "loss/policy_avg": 0.0}, 128),
    "nemo-rl": ({"_step": [1, 2, 3], "train/reward": [0.1, 0.2, 0.3], "train/lr": 1e-6, "train/probs_ratio": 1.0, "train/grad_norm": 4.0}, 128),
    "prime-rl": (
        {"step": [1, 2, 3], "reward/all/mean": [0.1, 0.2, 0.3], "optim/lr": 1e-6, "progress/total_rollouts": [32, 64, 96], "mismatch_kl/mean": 0.01},
        32,
    ),
}


def trackio_store(path, table):
    with sqlite3.connect(path) as store:
        store.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)")
        for k, row in enumerate(table.to_dict("records"), start=1):
            store.execute("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES ('2026-01-01', 'run', ?, ?)", (k, json.dumps(row)))
    store.close()


@pytest.mark.parametrize("trainer", SPOKEN)
@pytest.mark.parametrize("store", ["csv", "parquet", "jsonl", "db"])
def test_a_trainer_is_recognised_in_any_store(tmp_path, trainer, store):
    columns, step = SPOKEN[trainer]
    table = pd.DataFrame(columns)
    file = tmp_path / f"run.{store}"
    if store == "db":
        trackio_store(file, table)
    else:
        {"csv": table.to_csv, "parquet": table.to_parquet}.get(store, lambda f, index: table.to_json(f, orient="records", lines=True))(file, index=False)
    runs = tc.read_runs(file, settings={"group": 8, "updates_per_rollout": 4, "completions": 32})
    assert curve(runs, "reward") == ([step, 2 * step, 3 * step], [0.1, 0.2, 0.3])
    assert runs.runs["lr"].tolist() == [1e-6]
    kept = json.loads(runs.runs["config"][0])
    assert kept["source"] == trainer
    if trainer == "nemo-rl":
        assert kept["aggregation"]["grad_norm"] == "sum over the updates of the rollout"
    assert tc.read_runs(file, source=trainer, settings={"group": 8, "updates_per_rollout": 4, "completions": 32})


def test_a_folder_may_be_called_like_a_pattern(tmp_path):
    folder = tmp_path / "run[1]"
    folder.mkdir()
    pd.DataFrame(SPOKEN["openrlhf"][0]).to_csv(folder / "a.csv", index=False)
    given = SIZE | {"updates_per_rollout": 4}
    assert len(tc.read_runs(folder, settings=given).runs) == 1 == len(tc.read_runs(str(tmp_path / "run*"), settings=given).runs)
    with pytest.raises(RecordsError, match="holds the keys of openrlhf, not of verl"):
        tc.read_runs(folder, source="verl", settings=given)


def test_the_wrong_trainer_is_refused(tmp_path):
    pd.DataFrame(SPOKEN["openrlhf"][0]).to_csv(tmp_path / "run.csv", index=False)
    with pytest.raises(RecordsError, match="holds the keys of openrlhf, not of nemo-rl"):
        tc.read_runs(tmp_path / "run.csv", source="nemo-rl", settings=SIZE)


@pytest.mark.parametrize("trainer", ["open-instruct", "prime-rl"])
def test_completions_that_the_log_counts_need_not_be_given(tmp_path, trainer):
    pd.DataFrame(SPOKEN[trainer][0]).to_csv(tmp_path / "run.csv", index=False)
    given = {"group": 8, "updates_per_rollout": 4}
    assert tc.read_runs(tmp_path / "run.csv", settings=given).runs["batch"].tolist() == [32]


def test_a_step_that_is_a_rollout_needs_its_updates(tmp_path):
    pd.DataFrame(SPOKEN["openrlhf"][0]).to_csv(tmp_path / "run.csv", index=False)
    with pytest.raises(RecordsError, match="a step of openrlhf is a rollout, and how many optimizer updates it takes is not in the log"):
        tc.read_runs(tmp_path / "run.csv", settings={"completions": 32, "group": 8})


def test_rollout_dumps_count_completions_and_groups(tmp_path):
    for step in (1, 2, 10):
        rows = [{"input": f"p{i // 4}", "output": "x", "gts": "1", "score": float(i < step), "step": step} for i in range(16)]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = tc.read_runs(tmp_path, settings={"updates_per_rollout": 2, "lr": 1e-6})
    row = runs.runs.iloc[0]
    assert (row["batch"], row["group"], row["samples_done"]) == (8, 4, 48)
    assert curve(runs, "reward") == ([16, 32, 48], [1 / 16, 2 / 16, 10 / 16])
    assert curve(runs, "zero_std_frac")[1] == [0.75, 0.75, 0.75]
    (tmp_path / "11.jsonl").write_text(json.dumps({"input": "p", "output": "x", "score": 1.0, "step": 11}) + "\n")
    with pytest.raises(RecordsError, match="rollouts of 1 to 16 completions"):
        tc.read_runs(tmp_path, settings={"updates_per_rollout": 2, "lr": 1e-6})


def test_a_live_run_of_our_own_is_a_log_too(tmp_path):
    folder = tmp_path / "run-1"
    folder.mkdir()
    row = {
        "run_id": "run-1",
        "batch": 32,
        "group": 8,
        "updates_per_rollout": 4,
        "lr": 2e-6,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "lr_warmup_samples": 64,
        "seed": 3,
    }
    (folder / "run.json").write_text(json.dumps(row))
    rows = [{"run_id": "run-1", "attempt": 0, "update": k, "samples": 32 * k, "reward": 0.1 * k, "heldout_acc": 0.2} for k in range(4)]
    (folder / "curve.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"upd')
    runs = tc.read_runs(tmp_path)
    assert curve(runs, "reward") == ([0, 32, 64, 96], [0.0, 0.1, 0.2, 0.3])
    told = runs.runs.iloc[0]
    assert (told["seed"], told["lr_warmup_samples"], round(float(told["clip_high"]), 6)) == (3, 64, 0.2)


# -- tables, settings, refusals -------------------------------------------------------------------------------------


def test_any_table_with_a_mapping(tmp_path):
    table = pd.DataFrame({"who": ["a"] * 3 + ["b"] * 3, "seen": [64, 128, 192] * 2, "score": [0.1, 0.2, 0.3, 0.2, 0.3, 0.4]})
    columns = {"run": "who", "samples": "seen", "reward": "score"}
    with gzip.open(tmp_path / "log.csv.gz", "wt", newline="\r\n") as file:
        table.to_csv(file, index=False)
    table.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    for name in ("log.csv.gz", "log.jsonl"):
        runs = tc.read_runs(tmp_path / name, columns=columns, settings=SIZE)
        assert len(runs.runs) == 2 and curve(runs, "reward")[0] == [64, 128, 192] * 2
        assert runs.curves["update"].tolist() == [2, 4, 6] * 2


def test_settings_may_be_a_table_of_runs(tmp_path, checkpoint):
    checkpoint(LOGGED, run="a")
    checkpoint([(k, {**row, "reward": 0.9}) for k, row in LOGGED], run="b")
    pd.DataFrame({"run": ["a", "b"], "completions": [32, 64], "group": 8, "lr": [1e-6, None]}).to_csv(tmp_path / "runs.csv", index=False)
    runs = tc.read_runs([tmp_path / "a", tmp_path / "b"], settings=tmp_path / "runs.csv")
    assert runs.runs.set_index("batch")["lr"].to_dict() == {32: 1e-6, 64: 2e-6}
    with pytest.raises(RecordsError, match="no row for run 'b'"):
        tc.read_runs([tmp_path / "a", tmp_path / "b"], settings=pd.DataFrame({"run": ["a"], "completions": 32, "group": 8}))


def test_records_are_read_too():
    assert len(tc.read_runs(str(importers.__file__).replace("twoclocks/importers/__init__.py", "experiments/results")).runs) >= 216


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (None, "how many completions an optimizer update takes is not in the log"),
        ({"completions": 32}, "completions per prompt are not in the log"),
        ({"batch": 32, "group": 8}, "prompts in some trainers and completions in others"),
        ({"completions": 32, "group": 8, "size": 3}, "unknown field"),
        ({"prompts": 4}, "how many completions"),
    ],
)
def test_what_the_log_does_not_say_is_asked_for(checkpoint, settings, says):
    with pytest.raises(RecordsError, match=says):
        tc.read_runs(checkpoint(LOGGED), settings=settings)


DAMAGED = {
    "trainer_state.json": ["", "{", "[]", "null", '{"log_history": 3}', '{"log_history": []}', '{"log_history": [1, 2]}',
                           '{"log_history": [{"loss": 1}]}', "\x00\x01"],
    "a.csv": ["", "\n\n", "a\n", '"', "a,b\n1,2,3\n", "train/reward\n0.1\n", "\x00\x01\x02", "Step,x - train/reward\n1,2\n"],
    "a.jsonl": ["", "\n", "[]\n", "1\n2\n", '{"step": 1\n{"step": 2}\n', '{"a": 1}\n', '{"step": 1, "data": {}}\nnot json\n{"step": 2, "data": {}}\n'],
    "a.parquet": ["", "PAR1", "not parquet"],
    "a.csv.gz": ["", "plain text"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in DAMAGED.items() for text in texts])
def test_damaged_logs_are_typed_errors(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    with pytest.raises(TwoclocksError):
        tc.read_runs(tmp_path / name, settings=SIZE)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(RecordsError, match="no such file"):
        tc.read_runs(tmp_path / "absent")
    with pytest.raises(RecordsError, match="no log found"):
        tc.read_runs(tmp_path)
    with pytest.raises(RecordsError, match="choose auto or one of"):
        tc.read_runs(tmp_path, source="lightning")
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(RecordsError, match="no column 'z' \\(mapped to reward\\)"):
        tc.read_runs(tmp_path / "a.csv", columns={"update": "x", "reward": "z"}, settings=SIZE)
    with pytest.raises(RecordsError, match="no canonical name"):
        tc.read_runs(tmp_path / "a.csv", columns={"update": "x", "score": "y"}, settings=SIZE)
    with pytest.raises(RecordsError, match="map one of samples"):
        tc.read_runs(tmp_path / "a.csv", columns={"reward": "y"}, settings=SIZE)


def test_names_are_data_and_never_paths(tmp_path):
    pd.DataFrame({"run": ["../../etc/passwd"] * 2, "k": [1, 2], "r": [0.1, 0.2]}).to_csv(tmp_path / "a.csv", index=False)
    runs = tc.read_runs(tmp_path / "a.csv", columns={"run": "run", "update": "k", "reward": "r"}, settings=SIZE)
    assert runs.runs["run_id"].str.fullmatch(r"etc-passwd-[0-9a-f]{8}").all()


# -- stores written by the tools themselves -------------------------------------------------------------------------


@pytest.mark.parametrize(("store", "source"), [("trackio.db", "trackio"), ("mlruns", "mlflow"), ("sweep-a.wandb", "wandb")])
def test_stores_are_read_as_their_tools_wrote_them(store, source):
    given = {"completions": 32} | ({} if source == "mlflow" else {"group": 8})  # MLflow keeps the parameters
    runs = tc.read_runs(DATA / store, settings=given)
    assert curve(runs, "reward") == ([32, 96, 160], [0.1, 0.3, 0.5])
    assert curve(runs, "heldout_acc") == ([128], [0.4])
    assert runs.curves["grad_norm"].isna().tolist() == [False, False, True, False, False, False]
    row = runs.runs.iloc[0]
    assert (row["lr"], row["group"]) == (1e-6, 8)
    assert row["run_id"].startswith("sweep-a-") and json.loads(row["config"])["source"] == source


def test_a_store_is_opened_read_only():
    before = (DATA / "trackio.db").read_bytes()
    tc.read_runs(DATA / "trackio.db", settings={"completions": 32, "group": 8})
    assert (DATA / "trackio.db").read_bytes() == before and not list(DATA.glob("trackio.db-*"))


def test_every_tensorboard_scalar_is_read(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    for start, scale in ((0, 1.0), (11_000, 2.0)):  # two files; the second resumes before the first ends
        with SummaryWriter(str(tmp_path / "runs" / "Dec01")) as writer:
            for k in range(start, start + 12_000):
                writer.add_scalar("train/reward", scale * k, k)
            writer.add_scalar("train/learning_rate", 1e-6, start + 1)
    runs = tc.read_runs(tmp_path, settings={"completions": 8, "group": 4})
    assert len(runs.runs) == 1 and runs.runs["samples_done"].tolist() == [22_999 * 8]
    assert 23_000 * 0.9 < runs.curves["reward"].iloc[-1] / 2 < 23_000
    notes = json.loads(runs.runs["config"][0])["notes"]
    assert "1000 rows of earlier attempts" in notes[0] and "23000 rows were thinned to at most 200" in notes[1]


@pytest.mark.parametrize("content", [b"", b"not sqlite", b"SQLite format 3\x00" + b"\x00" * 200])
def test_damaged_stores_are_typed_errors(tmp_path, content):
    (tmp_path / "demo.db").write_bytes(content)
    with pytest.raises(TwoclocksError):
        tc.read_runs(tmp_path / "demo.db", settings=SIZE)
    (tmp_path / "events.out.tfevents.1").write_bytes(content)
    with pytest.raises(TwoclocksError):
        tc.read_runs(tmp_path / "events.out.tfevents.1", settings=SIZE)
    (tmp_path / "metrics").mkdir()
    (tmp_path / "meta.yaml").write_text("run_id: a\n")
    with pytest.raises(TwoclocksError, match="no metrics"):
        tc.read_runs(tmp_path / "meta.yaml", settings=SIZE)
    (tmp_path / "metrics/reward").write_bytes(content or b"1 2\n")
    with pytest.raises(TwoclocksError):
        tc.read_runs(tmp_path / "meta.yaml", settings=SIZE)
