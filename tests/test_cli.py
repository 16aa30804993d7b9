import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from twoclocks import Schedule, Setting, records
from twoclocks import schedule as schedules
from twoclocks.cli import main

RESULTS = Path(__file__).parents[1] / "experiments/results"


@pytest.fixture
def run(monkeypatch, capsys):
    """The console entry point in this process: (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr("sys.argv", ["twoclocks", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return SimpleNamespace(returncode=stop.value.code, stdout=printed.out, stderr=printed.err)

    return call


def test_check_counts_runs(run):
    done = run("check", RESULTS)
    assert done.returncode == 0, done.stderr
    assert "no rule broken" in done.stdout
    assert "pilot_progress" in done.stdout


def test_fit_and_plan_write_a_schedule_once(run, planted, tmp_path):
    law = lambda b, c, clipped: 45_000 * (1.8e-7 / c)  # noqa: E731
    records.write(planted(a=20.0, h0=2e6, h1=8e3, collapse=law, lr32=(1e-6, 2e-6, 4e-6)), tmp_path / "records", "planted")
    out = tmp_path / "schedule.json"
    options = ["plan", tmp_path / "records", "--target", "0.3", "--samples", "100000", "--n-boot", "5", "--out", out]
    done = run(*options)
    assert done.returncode == 0, done.stderr
    assert "b_drift" in done.stdout
    assert Schedule.load(out).provenance["made_by"] == "twoclocks.plan"
    shown = run("show", out)
    assert "one constant setting" in shown.stdout
    before = out.read_bytes()
    again = run(*options)
    assert again.returncode == 2
    assert "exists and is left as it is" in again.stderr
    assert out.read_bytes() == before


def damaged(tmp_path, change):
    (tmp_path / "curves").mkdir()
    for file in (RESULTS / "curves").iterdir():
        (tmp_path / "curves" / file.name).write_bytes(file.read_bytes())
    change(pd.read_parquet(RESULTS / "runs.parquet")).to_parquet(tmp_path / "runs.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.drop(columns="batch"), "missing column(s) batch"),
        (lambda t: t.assign(schema_version=2), "schema_version 2;"),
        (lambda t: t.assign(drift_rate=float("nan")), "row 0, column drift_rate: null or NaN"),
    ],
)
def test_bad_records_exit_2_and_say_why(run, tmp_path, change, says):
    done = run("check", damaged(tmp_path, change))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "nowhere"], "no such file"),
        (["fit", RESULTS, "--target", "0.3"], "runs differ in clip_low"),
        (["fit", RESULTS, "--target", "0.3", "--where", "colour=red"], "no column 'colour'"),
        (["fit", RESULTS, "--target", "0.3", "--where", "batch=many"], "--where batch=many"),
        (["fit", RESULTS, "--target", "0.3", "--where", "batch=7"], "no run satisfies batch=7"),
        (["fit", RESULTS, "--target", "0.3", "--where", "clip_low=null", "--metric", "accuracy"], "not a measured curve column"),
        (["fit", RESULTS, "--target", "0.3", "--where", "clip_low=null", "--metric", "run_id"], "not a measured curve column"),
        (["fit", RESULTS, "--where", "clip_low=null"], "give either target="),
        (["plan", RESULTS, "--target", "0.3", "--throughput", "fast"], "--throughput fast: expected"),
        (["plot", RESULTS, "--target", "0.3", "--out", "picture.txt"], "written as .png"),
        (["watch", RESULTS / "SCHEMA.md", "--once"], "no known log format"),
        (["plan", RESULTS, "--target", "0.3", "--samples", "9", "--out", "no/where.json"], "no such folder"),
        (["show", RESULTS / "runs.parquet"], "not a readable schedule"),
    ],
)
def test_bad_questions_exit_2(run, arguments, says):
    done = run(*arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_sound_input_without_an_answer_exits_1_with_the_remedy(run, planted, tmp_path):
    records.write(planted(), tmp_path / "records", "planted")
    done = run("plan", tmp_path / "records", "--target", "0.3", "--samples", "50000", "--n-boot", "3")
    assert done.returncode == 1
    assert "run longer, or at a larger learning rate" in done.stderr
    contradicted = ["plan", RESULTS, "--target", "0.22", "--metric", "reward", "--where", "clip_low=null", "--n-boot", "2", "--samples", "90000"]
    done = run(*contradicted)
    assert done.returncode == 1
    assert "does not describe" in done.stderr


def test_every_command_has_help_with_an_example(run):
    for command in ("check", "import", "fit", "plan", "plot", "show", "export", "watch"):
        done = run(command, "--help")
        assert done.returncode == 0 and f"Example: twoclocks {command} " in " ".join(done.stdout.split()), command
    assert "Exit codes: 0 done; 1" in run("--help").stdout and "--install-completion" in run("--help").stdout


def numbers_in(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_command_speaks_json(run, planted, tmp_path):
    law = lambda b, c, clipped: 45_000 * (1.8e-7 / c)  # noqa: E731
    folder, made = tmp_path / "records", tmp_path / "schedule.json"
    records.write(planted(a=20.0, h0=2e6, h1=8e3, collapse=law, lr32=(1e-6, 2e-6, 4e-6)), folder, "planted")
    options = [folder, "--target", "0.3", "--n-boot", "5", "--json"]
    assert numbers_in(run("check", folder, "--json"))["runs"] == 36
    fitted = numbers_in(run("fit", *options))
    assert {row["parameter"] for row in fitted["parameters"]} == {"a", "h0", "h1", "samples", "b_batch", "b_drift"}
    assert fitted["laws"]["drift"] == "within the intervals" and len(fitted["models"]) == 3
    schedule = numbers_in(run("plan", *options, "--samples", "100000", "--out", made))
    assert schedule == json.loads(made.read_text())
    assert numbers_in(run("show", made, "--json")) == schedule
    assert numbers_in(run("export", made, "--to", "verl", "--json"))["to"] == "verl"
    picture = tmp_path / "clocks.png"
    assert numbers_in(run("plot", *options, "--schedule", made, "--out", picture))["wrote"] == str(picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert run("plot", *options, "--out", picture).returncode == 2
    log = tmp_path / "h.csv"
    pd.DataFrame({"train/global_step": [1, 2, 3], "train/reward": [0.1, 0.2, 0.3], "train/learning_rate": 1e-6}).to_csv(log, index=False)
    told = numbers_in(run("import", log, "--set", "completions=32", "--set", "group=8", "--out", tmp_path / "a", "--json"))
    assert told["runs"][0]["batch"] == 32


def test_watch_reads_both_clocks_off_a_live_log(run, planted, tmp_path):
    law = lambda b, c, clipped: 45_000 * (1.8e-7 / c)  # noqa: E731
    records.write(planted(a=20.0, h0=2e6, h1=8e3, collapse=law, lr32=(1e-6, 2e-6, 4e-6)), tmp_path / "records", "planted")
    made, log = tmp_path / "schedule.json", tmp_path / "live.jsonl"
    assert run("plan", tmp_path / "records", "--target", "0.3", "--n-boot", "5", "--samples", "100000", "--out", made).returncode == 0
    lr = Schedule.load(made)(0).lr
    rows = [{"step": k, "data": {"critic/score/mean": 0.2 + 0.001 * k, "actor/lr": lr, "actor/ppo_kl": 0.001}} for k in range(1, 41)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows[:20]) + '{"step": 21, "da')
    options = ["watch", log, "--schedule", made, "--set", "completions=32", "--set", "group=8", "--set", "updates_per_rollout=4", "--once"]
    first = numbers_in(run(*options, "--json", "--threshold", "0.1"))
    clock = Schedule.load(made).provenance["clocks"]["failure"]
    assert first["samples"] == 20 * 128 and first["reward"] == pytest.approx(0.22)
    life = clock["samples"] * (32 / clock["batch0"]) ** clock["b_batch"] * (lr / 32**0.5 / clock["drift_rate0"]) ** clock["b_drift"]
    assert first["drift_spent"] == pytest.approx(20 * 128 / life, rel=1e-6)
    assert first["drift"] == pytest.approx(0.02) and first["drift_samples_left"][0] == pytest.approx(80 * 128, rel=0.01)
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert numbers_in(run(*options, "--json"))["samples"] == 40 * 128
    assert "failure clock spent" in run(*options).stdout
    schedules.constant(Setting(batch=32, lr=1e-6), 4096).save(tmp_path / "bare.json")
    assert "carries no clocks" in run("watch", log, "--schedule", tmp_path / "bare.json", "--once").stderr


def test_version(run):
    assert run("version").stdout.strip() == __import__("twoclocks").__version__


def test_check_says_what_a_configuration_will_do(run, tmp_path):
    config, made = tmp_path / "grpo.yaml", tmp_path / "schedule.json"
    config.write_text("per_device_train_batch_size: 4\ngradient_accumulation_steps: 4\nsteps_per_generation: 2\nnum_iterations: 2\n")
    done = run("check", config)
    assert done.returncode == 2
    assert "16 completions per optimizer update" in done.stdout and "refused: gradient_accumulation_steps=4 exceeds" in done.stdout
    config.write_text("per_device_train_batch_size: 8\nlogging_nan_inf_filter: false\n")
    schedules.sqrt_switch(Setting(batch=32, lr=1e-6, updates_per_rollout=4), 128, 1024, 4096).save(made)
    done = run("check", config, "--schedule", made, "--prompts", 1000, "--processes", 2)
    assert done.returncode == 0, done.stderr
    assert "from 1,024 completions (update 32): 128 completions per update" in done.stdout
    assert run("check", config, "--schedule", made, "--prompts", 10).returncode == 2


def test_export_prints_fragments_and_json(run, tmp_path):
    made = tmp_path / "schedule.json"
    schedules.sqrt_switch(Setting(batch=32, lr=1e-6, updates_per_rollout=4), 128, 1024, 4096).save(made)
    done = run("export", made, "--to", "verl")
    assert done.returncode == 0 and "data.train_batch_size=16" in done.stdout and "# note: resume with" in done.stdout
    assert [s["fields"]["--train.batch_size"] for s in json.loads(run("export", made, "--to", "openrlhf", "--json").stdout)["stages"]] == [32, 128]
    assert run("export", made, "--to", "nowhere").returncode == 2


def test_logs_are_imported_fitted_and_planned(run, planted, tmp_path):
    """Planted runs written as W&B histories: the same clocks as from the records, and a schedule."""
    law = lambda b, c, clipped: 45_000 * (1.8e-7 / c)  # noqa: E731
    runs = planted(a=20.0, h0=2e6, h1=8e3, collapse=law, lr32=(1e-6, 2e-6, 4e-6))
    logs, rows = tmp_path / "logs", []
    logs.mkdir()
    for row in runs.runs.itertuples():
        curve = runs.curves[runs.curves["run_id"] == row.run_id]
        columns = {"train/global_step": curve["update"], "eval/reward": curve["heldout_acc"], "train/learning_rate": row.lr}
        pd.DataFrame(columns).to_csv(logs / f"{row.run_id}.csv", index=False)
        rows.append({"run": row.run_id, "completions": row.batch, "group": row.group, "updates_per_rollout": row.updates_per_rollout, "lr": row.lr})
    table, made = tmp_path / "runs.csv", tmp_path / "schedule.json"
    pd.DataFrame(rows).to_csv(table, index=False)
    done = run("import", logs, "--settings", table, "--out", tmp_path / "records")
    assert done.returncode == 0, done.stderr
    assert f"wrote {len(rows)} runs" in done.stdout
    assert run("import", logs, "--settings", table, "--out", tmp_path / "records").returncode == 2
    planned = run("plan", logs, "--settings", table, "--target", "0.3", "--samples", "100000", "--n-boot", "5", "--out", made)
    assert planned.returncode == 0, planned.stderr
    assert run("export", made, "--to", "verl").returncode == 0
    fits = [run("fit", path, "--target", "0.3", "--n-boot", "5", *extra).stdout for path, extra in ((logs, ("--settings", table)), (tmp_path / "records", ()))]
    assert fits[0] == fits[1]


def test_what_logs_lack_is_asked_for_on_the_command_line(run, tmp_path):
    log = tmp_path / "h.csv"
    pd.DataFrame({"train/global_step": [1, 2, 3], "train/reward": [0.1, 0.2, 0.3], "train/learning_rate": 1e-6}).to_csv(log, index=False)
    assert "is not in the log" in run("import", log, "--out", tmp_path / "a").stderr
    assert "'many' is not a number" in run("import", log, "--set", "completions=many", "--out", tmp_path / "a").stderr
    assert run("import", log, "--set", "completions=32", "--set", "group=8", "--out", tmp_path / "a").returncode == 0
    assert "give one of them" in run("import", log, "--set", "group=8", "--settings", log, "--out", tmp_path / "b").stderr
