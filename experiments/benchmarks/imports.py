"""Large sweeps: `python -m experiments.benchmarks.imports [--out FILE]` imports and fits them and holds time and memory to targets.

Targets, for two cores: 2,000 runs of 5,000 rows from one parquet table, imported and fitted, in under 60 s and 2 GB; 200
trainer_state.json of 5,000 rows in under 30 s and 1 GB; 1,000 bootstrap draws on the committed records in under 10 s;
`import twoclocks` at most 0.5 s beyond numpy, pandas and scipy. Every case runs in a process of its own; memory is its peak
resident set.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

TARGETS = {"parquet": (60.0, 2.0), "trainer_states": (30.0, 1.0), "bootstrap": (10.0, None), "import": (0.5, None)}
ROWS = 5_000
RESULTS = Path(__file__).parents[1] / "results"


def settings_of(runs: int) -> pd.DataFrame:
    """A sweep: batches and learning rates on a grid, the rest seeds."""
    batch = np.resize([32, 128, 512, 2048], runs)
    c = np.resize(np.repeat([1e-6, 2e-6, 4e-6, 8e-6], 4), runs) / 32**0.5
    names = [f"run-{k:04d}" for k in range(runs)]
    return pd.DataFrame({"run": names, "completions": batch, "lr": c * batch**0.5, "group": 8, "updates_per_rollout": 4, "seed": np.arange(runs) // 16})


def curve_of(row: Any, rng: np.random.Generator) -> pd.DataFrame:
    """5,000 logged updates of one run: reward rises, then falls where its drift has spent the failure clock."""
    update = np.arange(1, ROWS + 1)
    samples, c = update * row.completions, row.lr / row.completions**0.5
    slower = 1.8e-7 / c * row.completions
    end, reach = (updates * slower * np.exp(0.15 * rng.standard_normal()) for updates in (9_000, 4_000))
    reward = np.where(samples < end, 0.2 + 0.1 * np.minimum(samples / reach, 2.5), 0.05) + 0.02 * rng.standard_normal(ROWS)
    return pd.DataFrame({"step": update, "reward": reward.astype("float32"), "lr": np.float32(row.lr), "entropy": np.float32(1.0)})


def write_parquet(folder: Path, runs: int = 2_000) -> None:
    """One table, as a metrics store exports it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, rng = settings_of(runs), np.random.default_rng(0)
    writer = None
    for row in table.itertuples():
        part = pa.Table.from_pandas(curve_of(row, rng).assign(run=row.run), preserve_index=False)
        writer = writer or pq.ParquetWriter(folder / "sweep.parquet", part.schema)
        writer.write_table(part)
    assert writer is not None
    writer.close()
    table.to_csv(folder / "runs.csv", index=False)


def write_states(folder: Path, runs: int = 200) -> None:
    """A checkpoint a run, with as many keys as TRL logs."""
    table, rng = settings_of(runs), np.random.default_rng(0)
    other = {f"completions/{k}_length": 12.0 for k in ("mean", "min", "max")} | {
        f"clip_ratio/{k}": 0.0 for k in ("low_mean", "low_min", "high_mean", "high_max")
    }
    other |= {"loss": 0.0, "grad_norm": 0.51, "frac_reward_zero_std": 0.25, "reward_std": 0.3, "num_tokens": 1e6, "step_time": 0.2, "epoch": 0.1, "kl": 0.01}
    for row in table.itertuples():
        rows = [
            {**other, "learning_rate": float(r.lr), "reward": float(r.reward), "entropy": 1.0, "step": int(r.step)} for r in curve_of(row, rng).itertuples()
        ]
        place = folder / str(row.run) / f"checkpoint-{ROWS}"
        place.mkdir(parents=True)
        (place / "trainer_state.json").write_text(json.dumps({"global_step": ROWS, "log_history": rows}))
    table.to_csv(folder / "runs.csv", index=False)


CASES = {
    "parquet": (
        "import twoclocks as tc; runs = tc.read_runs({folder!r} + '/sweep.parquet', settings={folder!r} + '/runs.csv', "
        "columns={{'run': 'run', 'update': 'step', 'reward': 'reward', 'lr': 'lr'}}); assert len(runs.runs) == 2000; tc.fit(runs, metric='reward', target=0.3)"
    ),
    "trainer_states": (
        "import pathlib, twoclocks as tc; runs = tc.read_runs(sorted(pathlib.Path({folder!r}).glob('run-*')), settings={folder!r} + '/runs.csv'); "
        "assert len(runs.runs) == 200; tc.fit(runs, metric='reward', target=0.3)"
    ),
    "bootstrap": "import twoclocks as tc; tc.fit(tc.read_records({results!r}).select(clip_low=None), metric='reward', target=0.22, n_boot=1000)",
    "import": "import twoclocks",
}


def measure(code: str) -> tuple[float, float]:
    """(seconds, peak GB) of a statement in a fresh process that has numpy, pandas and scipy loaded already."""
    script = (
        "import time, numpy, pandas, scipy.optimize, scipy.stats, resource\nstart = time.perf_counter()\n"
        f"{code}\nprint(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    seconds, peak = map(float, done.stdout.split()[-2:])
    return seconds, peak


def main(out: Annotated[Path | None, typer.Option(help="JSON to write")] = None) -> None:
    """Measure every case; exit code 1 if one misses its target."""
    found, missed = {}, 0
    for name, code in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            if name == "parquet":
                write_parquet(Path(folder))
            if name == "trainer_states":
                write_states(Path(folder))
            start = time.perf_counter()
            seconds, peak = measure(code.format(folder=folder, results=str(RESULTS)))
            wall = time.perf_counter() - start
        limit, memory = TARGETS[name]
        within = seconds <= limit and (memory is None or peak <= memory)
        missed += not within
        found[name] = {"seconds": seconds, "peak_gb": peak, "process_seconds": wall, "within": within}
        typer.echo(f"{name:15s} {seconds:6.2f} s (limit {limit:g})  {peak:5.2f} GB (limit {memory})  {'ok' if within else 'MISSED'}")
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    if missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
