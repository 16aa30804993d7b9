"""The quick start: one planted sweep in six kinds of log, from logs to another trainer's configuration."""

import filecmp
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import twoclocks as tc
from experiments.samples import __main__ as samples

HERE = Path(samples.__file__).parent
KINDS = ["trl", "verl", "wandb", "openrlhf", "open-instruct", "trackio.db"]


def fitted(kind):
    return tc.fit(tc.read_runs(HERE / kind, settings=HERE / "runs.csv"), target=0.3, n_boot=40)


@pytest.fixture(scope="module")
def reference():
    return fitted(KINDS[0])


@pytest.mark.parametrize("kind", KINDS[1:])
def test_every_kind_of_log_tells_the_same_clocks(reference, kind):
    pd.testing.assert_frame_equal(fitted(kind).summary(), reference.summary())


def test_the_samples_know_their_clocks(reference):
    for name, truth in {**samples.TRUTH, "b_batch": 0.0, "b_drift": -1.0}.items():
        low, high = reference.interval("failure" if name.startswith("b_") else "progress", name)
        assert low < truth < high, name
    assert [law for law, verdict in reference.laws().items() if verdict == "within the intervals"] == ["drift"]


def test_from_logs_to_another_trainer(reference):
    schedule = tc.plan(reference, samples=60_000)
    assert tc.Schedule.from_json(schedule.to_json()).to_json() == schedule.to_json()
    assert "actor_rollout_ref.actor.optim.lr" in str(tc.export(schedule, to="verl"))


def test_the_samples_are_what_their_script_writes(tmp_path):
    samples.main(tmp_path)
    for kind in [k for k in KINDS if k != "trackio.db"]:
        names = [str(p.relative_to(tmp_path)) for p in (tmp_path / kind).rglob("*") if p.is_file()]
        same, differ, missing = filecmp.cmpfiles(tmp_path, HERE, names, shallow=False)
        assert len(same) == 36 and not differ and not missing, kind
    assert (tmp_path / "runs.csv").read_text() == (HERE / "runs.csv").read_text()


def test_a_several_target_fit_shares_its_shape(reference):
    runs = tc.read_runs(HERE / "trl", settings=HERE / "runs.csv")
    several = tc.fit(runs, target=[0.3, 0.27, 0.33], n_boot=40)
    assert several.target == pytest.approx(0.3) and len(several.cells) == 36
    low, high = several.interval("progress", "h1")
    assert low < reference.progress.h1 < high
    by_gain = tc.fit(runs, gain=0.09, n_boot=40)
    assert by_gain.gain == 0.09 and by_gain.progress.a == pytest.approx(reference.progress.a, rel=0.1)


def test_saturation_and_curvature_are_told_apart():
    """Planted curvature: the saturation model fits worse, on AIC and on held-out cells; planted saturation: the other way round."""
    from experiments.planted import world

    common = {"lr32": (1e-6, 2e-6, 4e-6, 8e-6), "seeds": 4, "sd": lambda b: 0.08, "batches": (32, 128, 512, 2048)}
    curved = tc.fit(world(a=20.0, h0=2e6, h1=8e3, **common), target=0.3, n_boot=20).models.set_index("model")
    assert curved.loc["curvature", "aic"] < curved.loc["saturation", "aic"] - 10
    assert curved.loc["curvature", "heldout"] > curved.loc["saturation", "heldout"]
    runs = world(a=20.0, h0=2e6, saturation_batch=500.0, **common)
    saturated = tc.fit(runs, target=0.3, n_boot=40)
    models = saturated.models.set_index("model")
    assert models.loc["saturation", "aic"] < models.loc["curvature", "aic"] - 10
    assert models.loc["saturation", "heldout"] > models.loc["curvature", "heldout"]
    assert "'saturation' does better than 'curvature'" in saturated.remarks[0]
    named = tc.fit(runs, target=0.3, n_boot=40, model="saturation")
    low, high = named.interval("progress", "saturation_batch")
    assert low < 500 < high < 2 * low * 3
    assert not [r for r in named.remarks if "curvature" in r]


def test_without_saturation_its_batch_has_no_upper_end():
    from experiments.planted import world

    named = tc.fit(world(a=20.0, h0=2e6, lr32=(1e-6, 2e-6, 4e-6), seeds=3), target=0.3, n_boot=40, model="saturation")
    note = named.summary().set_index("parameter").loc["saturation_batch", "note"]
    assert "not identified from above" in note and "would shrink the interval" in note


def test_ten_seeds_are_resampled_as_clusters():
    from experiments.planted import world

    runs = world(a=20.0, h0=2e6, h1=8e3, lr32=(1e-6, 2e-6, 4e-6), seeds=10, batches=(32, 128, 512))
    clocks = tc.fit(runs, target=0.3, n_boot=60)
    assert clocks.intervals == "cluster bootstrap over 10 seeds"
    low, high = clocks.interval("progress", "h1")
    assert low < 8e3 < high < 4 * 8e3
    assert tc.fit(samples_of(runs, 4), target=0.3, n_boot=20).intervals == "parametric bootstrap, 4 seed(s) a cell"


def samples_of(runs, seeds):
    return runs.select(seed=list(range(seeds)))


def test_the_suggested_cell_is_the_one_that_helps(reference):
    """Adding the suggested runs shrinks the interval of b_drift to about what was promised."""
    from experiments.planted import world

    collapse = lambda b, c, k: 45_000 * (1.8e-7 / c)  # noqa: E731
    common = {"a": 20.0, "h0": 2e6, "h1": 8e3, "collapse": collapse, "sd": lambda b: 0.25, "seeds": 3}
    few = world(lr32=(2e-6, 3e-6), **common)
    before = tc.fit(few, target=0.3, n_boot=200)
    advice = before.next_cells.set_index("parameter").loc["b_drift"]
    assert advice["shrinks_to"] < 0.9
    more = world(lr32=(float(advice["lr"]) * (32 / advice["batch"]) ** 0.5,), batches=(int(advice["batch"]),), rng=9, sweep="more", **common)
    both = tc.Runs(pd.concat([few.runs, more.runs], ignore_index=True), pd.concat([few.curves, more.curves], ignore_index=True))
    after = tc.fit(both, target=0.3, n_boot=200)
    width = [np.ptp(c.interval("failure", "b_drift")) for c in (before, after)]
    assert width[1] / width[0] == pytest.approx(advice["shrinks_to"], abs=0.3)


def test_the_readme_quick_start_runs_for_every_kind(tmp_path, monkeypatch):
    """The README's shell commands, in this process, with each kind of log in verl's place."""
    import re
    import shlex

    from twoclocks.cli import main

    root = HERE.parents[1]
    (block,) = re.findall(r"```bash\n(twoclocks .*?)```", (root / "README.md").read_text(), flags=re.S)
    monkeypatch.chdir(root)
    for kind in KINDS:
        for line in block.strip().splitlines():
            told = line.replace("samples/verl", f"samples/{kind}").replace("schedule.json", str(tmp_path / f"{kind}.json"))
            monkeypatch.setattr("sys.argv", [*shlex.split(told), *(["--n-boot", "5"] if " export " not in told else [])])
            with pytest.raises(SystemExit) as stop:
                main()
            assert stop.value.code == 0, told
        assert tc.Schedule.load(tmp_path / f"{kind}.json").stages
