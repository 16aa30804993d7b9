import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from experiments import collect, models, sweep, tasks
from experiments.config import RunConfig
from experiments.train import run_config
from twoclocks import records
from twoclocks.errors import RecordsError, SettingError

ROOT = Path(__file__).parents[1]
RUNS = sorted(p.stem for p in (ROOT / "experiments/conf/run").glob("*.yaml"))
TINY = ["samples=256", "evaluation={problems: 32, first: 64, ratio: 2.0}", "lr_warmup_samples=64"]


@cache
def sweep_runs(name):
    return [config for _, config, _ in sweep.compose_runs(name, [])]


def composed(*overrides):
    with initialize_config_dir(version_base="1.3", config_dir=str(ROOT / "experiments/conf")):
        return compose("train", overrides=list(overrides))


# -- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_every_run_file_composes_to_legal_runs(name):
    base = composed(f"+run={name}")
    configs = sweep_runs(name) if OmegaConf.select(base, "axes") else [run_config(base)[0]]
    assert len({c.key() for c in configs}) == len(configs)
    for config in configs:
        assert config.sweep == name
        assert config.evaluations()[-1] == config.samples


@pytest.mark.parametrize("name", [r for r in RUNS if r.startswith("pilot")])
def test_sweeps_hold_the_drift_rate_and_count_what_their_header_says(name):
    runs = sweep_runs(name)
    header = (ROOT / f"experiments/conf/run/{name}.yaml").read_text()
    assert f"= {len(runs)} runs of {runs[0].samples:,} completions" in header
    rates = {round(c.schedule.stages[0].setting.drift_rate, 12) for c in runs}
    assert len(rates) == len({c.setting.lr for c in runs}) == 2


def test_lr_warm_up_and_horizon_are_the_same_in_samples_at_every_batch():
    runs = sweep_runs("pilot_progress")
    assert len({(c.samples, c.lr_warmup_samples, tuple(c.evaluations())) for c in runs}) == 1
    assert all(n % 2048 == 0 for n in runs[0].evaluations())


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["setting.group=7"], "not divisible by group=7"),
        (["task.train_problems=4"], "one rollout needs 16 prompts"),
        (["samples=500"], "not a whole number of rollouts"),
        (["micro_batch=24"], "per_device=24"),
        (["task.name=poetry"], "choose one of arithmetic"),
        (["setting.clip=0.2"], "not subscriptable"),
        (["setting.lr_batch=0"], "division by zero"),
        (["setting.lr=fast"], "run configuration"),
        (["evaluation.first=0"], "must be at least 1"),
        (["+setting.colour=red"], "colour"),
        (["+colour=red"], "colour"),
    ],
)
def test_illegal_runs_say_why_before_anything_starts(overrides, says):
    with pytest.raises(SettingError, match=says):
        run_config(composed("+run=smoke", *overrides))


def test_the_command_line_exits_2_for_an_illegal_run_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-m", "experiments.train", "+run=smoke", "setting.group=7", f"out={tmp_path / 'runs'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: batch=32")
    assert not (tmp_path / "runs").exists()


def test_unknown_trl_fields_explode(tmp_path):
    from experiments.train import grpo_config

    config = run_config(composed("+run=smoke", "+trl.nonsense=1"))[0]
    with pytest.raises(TypeError, match="nonsense"):
        grpo_config(config, tmp_path)


# -- task and model -----------------------------------------------------------------------------------------------


def test_arithmetic_splits_are_disjoint_seeded_and_exact():
    task = tasks.load("arithmetic")
    heldout = {p.prompt for p in task.problems("heldout", 16_384)}
    train = {p.prompt for p in task.problems("train", 200_000, seed=3)}
    assert len(heldout) == 16_384
    assert len(train) == 200_000
    assert not heldout & train
    assert task.problems("train", 5, seed=1) == task.problems("train", 5, seed=1) != task.problems("train", 5, seed=2)
    for p in task.problems("heldout", 100):
        assert sum(map(int, p.prompt[:-1].split("+"))) == int(p.answer)
        assert task.verify(p.answer, p.answer)
        assert not any(task.verify(junk, p.answer) for junk in (p.answer + " ", "0" + p.answer, p.answer + "1", ""))
    with pytest.raises(ValueError, match="the task has 16384"):
        task.problems("heldout", 20_000)
    with pytest.raises(ValueError, match="choose one of arithmetic"):
        tasks.load("poetry")


def test_mini_is_the_committed_start_that_the_records_name():
    facts = json.loads((models.MINI / "warmstart.json").read_text())
    assert models.weights_sha256(str(models.MINI)) == facts["sha256"]
    assert 2e6 <= facts["parameters"] <= 5e6
    assert 0.15 <= facts["sampled_acc"] <= 0.20
    start = records.read(ROOT / "experiments/results").runs["start_acc"]
    assert start.sub(facts["greedy_acc"]).abs().max() < 0.02


def test_tokenizer_is_one_token_a_character():
    _, tokenizer = models.load(str(models.MINI))
    text = "12+3+99=\n~ A"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


# -- live runs ----------------------------------------------------------------------------------------------------


def tiny(tmp_path, *overrides) -> RunConfig:
    return run_config(composed("+run=smoke", *TINY, "probe.every=0", f"out={tmp_path}", *overrides))[0]


def built(config, root):
    from experiments.recorder import run_row, write_run
    from experiments.train import build, new_folder

    folder = new_folder(root, "smoke")
    return *build(config, folder, write_run(folder, run_row(config, folder.name))), folder


def weights(trainer):
    return [p.detach().clone() for p in trainer.model.parameters()]


@pytest.fixture(scope="module")
def probed_run(tmp_path_factory):
    """One short run with the probe on: trainer, run folder, records."""
    root = tmp_path_factory.mktemp("runs")
    trainer, recorder, folder = built(tiny(root, "probe.every=3"), root)
    trainer.train()
    recorder.finish()
    return trainer, folder, collect.from_folders(root)


def test_a_run_writes_a_valid_record(probed_run, tmp_path):
    _, _, found = probed_run
    records.write(found, tmp_path, "smoke")
    runs = records.read(tmp_path)
    row, curve = runs.runs.iloc[0], runs.curves
    assert (row["status"], row["samples_done"], row["batch"]) == ("finished", 256, 32)
    assert curve["samples"].tolist() == [32 * u for u in range(9)]
    assert curve["rollout"].tolist() == [0] + [1] * 4 + [2] * 4
    assert curve["samples_generated"].iloc[-1] == 256
    updates = curve.iloc[1:]
    measured = ["lr", "drift_abs", "drift_k3", "drift_m2", "ess", "clip_frac_low", "clip_frac_high", "ratio_hist", "entropy", "grad_norm", "grad_clipped"]
    assert updates[measured].notna().all().all()
    assert updates.loc[updates["update_norm"].notna(), "update"].tolist() == [1, 4, 7]
    assert updates["inner_step"].tolist() == [0, 1, 2, 3] * 2
    assert updates["reward"].notna().tolist() == [True, False, False, False] * 2  # once a rollout, null elsewhere
    assert curve.loc[curve["heldout_acc"].notna(), "samples"].tolist() == [0, 64, 128, 256]
    assert curve.loc[curve["probe_gain"].notna(), "update"].tolist() == [1, 4, 7]


def test_drift_is_zero_on_the_first_update_of_a_rollout_and_grows(probed_run):
    curve = probed_run[2].curves.iloc[1:]
    drift = curve["drift_abs"].to_numpy().reshape(2, 4)
    assert drift[:, 0] == pytest.approx(0, abs=1e-6)
    assert (drift[:, 3] > drift[:, 1]).all()
    assert (curve["drift_k3"] >= -1e-9).all()


def test_at_one_update_a_rollout_only_the_probe_sees_drift(tmp_path):
    from experiments.train import run

    run(tiny(tmp_path, "setting.updates_per_rollout=1", "samples=96", "probe.every=1"), tmp_path)
    curve = collect.from_folders(tmp_path).curves.iloc[1:]
    assert curve["drift_abs"].isna().all()  # the ratio is 1 by construction: unmeasured, not 0
    assert curve["reward"].notna().all()
    assert (curve["probe_k3"] > 0).all()


def test_lr_follows_the_schedule(probed_run):
    assert probed_run[2].curves["lr"].iloc[1:4].tolist() == pytest.approx([5e-6 * 16 / 64, 5e-6 * 48 / 64, 5e-6])


def test_the_probe_and_the_meter_leave_training_bit_identical(probed_run, tmp_path):
    """Against TRL's own trainer with the same lr rule: same weights to the last bit."""
    import torch
    from trl import GRPOTrainer

    from experiments.train import grpo_config

    config = tiny(tmp_path)
    metered, _, _ = built(config, tmp_path)
    args = grpo_config(config, tmp_path)
    args.max_steps = metered.timetable.updates
    plain = GRPOTrainer(
        model=models.load(config.model.path)[0], reward_funcs=metered.reward_funcs, args=args, train_dataset=metered.train_dataset,
        processing_class=metered.processing_class,
    )  # fmt: skip
    plain._lr = metered._lr
    plain.create_scheduler = lambda num_training_steps, optimizer=None: type(metered).create_scheduler(plain, num_training_steps, optimizer)
    plain.train()
    for a, b in zip(weights(plain), weights(probed_run[0]), strict=True):
        assert torch.equal(a, b)


def test_the_probe_gain_is_the_reward_change_to_first_order():
    """On a softmax bandit with the exact expectation at hand: <delta, g> averages to the change of expected reward."""
    import torch

    from experiments.probe import reward_gradient

    torch.manual_seed(0)
    logits = torch.nn.Parameter(torch.tensor([0.3, -0.2, 0.1]))
    rewards = torch.tensor([1.0, 0.0, 0.5])

    class Bandit(torch.nn.Module):
        def forward(self, input_ids, attention_mask, position_ids):
            rows = logits.expand(*input_ids.shape, 3)
            return type("Out", (), {"logits": rows})()

    group, count = 8, 40_000
    actions = torch.multinomial(torch.softmax(logits, 0).detach(), group * count, replacement=True)
    ids = torch.stack([torch.zeros_like(actions), actions], dim=1)
    (found,) = reward_gradient(Bandit(), [logits], (ids, torch.ones_like(ids), 1), rewards[actions], group)
    (exact,) = torch.autograd.grad((torch.softmax(logits, 0) * rewards).sum(), [logits])
    assert torch.allclose(found, exact, atol=3e-3)


def test_a_run_that_cannot_start_is_a_failed_row(tmp_path):
    from experiments.train import run

    with pytest.raises(OSError, match="nowhere"):
        run(tiny(tmp_path, "model.path=nowhere/to/be/found"), tmp_path)
    (folder,) = tmp_path.glob("smoke-*")
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"
    assert "nowhere" in (folder / "error.txt").read_text()
    with pytest.raises(RecordsError, match="no run has a curve"):
        collect.from_folders(tmp_path)


def test_the_probe_draws_numbers_of_its_own():
    import torch

    from experiments.evaluate import aside

    model = torch.nn.Linear(1, 1)
    model.device = torch.device("cpu")
    torch.manual_seed(0)
    with aside(model, seed=5):
        inside = torch.rand(4)
    after = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(4))
    assert not torch.equal(inside, after)


def test_run_folders_are_never_reused(tmp_path):
    from experiments.train import new_folder

    assert len({new_folder(tmp_path, "s") for _ in range(20)}) == 20


def test_collect_refuses_running_and_empty_folders(tmp_path):
    with pytest.raises(RecordsError, match="no run folders"):
        collect.from_folders(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/run.json").write_text(json.dumps({"run_id": "a", "status": "running", "sweep": "s"}))
    with pytest.raises(RecordsError, match="still running"):
        collect.from_folders(tmp_path)


def test_a_killed_run_goes_on_from_its_checkpoint_with_no_row_lost_or_doubled(probed_run, tmp_path):
    """Cut off inside the second rollout, after a checkpoint and two updates more: the record is the whole run's."""
    from experiments.train import resume

    root = tmp_path / "runs"
    config = tiny(root, "probe.every=3", "save_every=3")
    trainer, _, folder = built(config, root)
    right, cut = trainer.training_step, 8

    def training_step(*args, **kwargs):
        if trainer.state.global_step == cut - 1:
            raise KeyboardInterrupt
        return right(*args, **kwargs)

    trainer.training_step = training_step
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    resume(folder)
    assert not list(folder.glob("checkpoint-*"))
    found, whole = collect.from_folders(root), probed_run[2]
    assert found.runs["status"].tolist() == ["finished"]
    rows, expected = found.curves, whole.curves
    assert rows["update"].tolist() == expected["update"].tolist()
    assert rows["attempt"].tolist() == [0] * 7 + [1] * 2
    assert rows["seconds"].is_monotonic_increasing
    for column in ("reward", "drift_k3", "drift_cum_k3", "grad_norm", "heldout_acc", "update_norm", "probe_gain", "lr"):
        assert rows[column].equals(expected[column]), column


@pytest.mark.slow
def test_a_sweep_survives_a_killed_child_and_then_goes_on(tmp_path):
    arguments = ["run=smoke_sweep", "jobs=2", f"out={tmp_path}", *TINY, "samples=512", "save_every=1"]
    limit = 15
    while not (begun := sweep.resumable(tmp_path)) and limit < 120:  # long enough for a checkpoint, short enough to be cut off
        assert sweep.main([*arguments, f"limit_s={limit}"]) == 1
        limit += 5
    states = [json.loads(p.read_text())["status"] for p in tmp_path.glob("*/run.json")]
    assert set(states) <= {"killed", "finished"}
    assert sweep.main(arguments) == 0
    for folder in begun.values():
        assert json.loads((folder / "run.json").read_text())["status"] == "finished"
    done = len(list(tmp_path.glob("*/run.json")))
    assert sweep.main(arguments) == 0  # nothing left
    assert len(list(tmp_path.glob("*/run.json"))) == done
    assert sum(json.loads(p.read_text())["status"] == "finished" for p in tmp_path.glob("*/run.json")) == 2
    for run_id, rows in collect.from_folders(tmp_path).curves.groupby("run_id"):
        assert rows["samples"].is_unique and rows["samples"].is_monotonic_increasing, run_id


def test_a_sweep_checks_what_its_children_will_compose():
    overrides, config, _ = sweep.compose_runs("pilot_failure", [])[-1]
    assert run_config(composed(*overrides))[0] == config


def test_runs_that_are_committed_are_not_run_again(tmp_path, capsys):
    assert sweep.main(["run=pilot_onset", f"out={tmp_path}"]) == 0
    assert "24 runs, 24 finished before, 0 to go" in capsys.readouterr().out
    assert not list(tmp_path.glob("*/run.json"))


def test_bad_sweeps_exit_2(capsys):
    assert sweep.main(["jobs=2"]) == 2
    assert sweep.main(["run=live", "jobs=0"]) == 2
    assert sweep.main(["run=live", "jobs=many"]) == 2
    assert sweep.main(["run=smoke"]) == 2
    assert sweep.main(["run=nowhere"]) == 2
    printed = capsys.readouterr().err
    assert "name a sweep" in printed
    assert "no `axes`" in printed
    assert "nowhere" in printed
