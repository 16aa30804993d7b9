"""A named sweep: `python -m experiments.sweep run=pilot_progress jobs=14`.

The run file's `axes` is a list of axes, each a list of mappings of dotted keys; the sweep is their product. Each run is a
subprocess of a thread pool, so a killed child is one failed row. Seed by seed, longest first; finished runs are skipped.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from experiments.config import RunConfig
from experiments.recorder import samples_done, write_run
from experiments.train import run_config
from twoclocks import records
from twoclocks.errors import SettingError, TwoclocksError

CONF = Path(__file__).parent / "conf"
RESULTS = Path(__file__).parent / "results"


def as_override(key: str, value: Any) -> str:
    """One Hydra override; JSON spells null and lists the way Hydra reads them."""
    return f"{key}={json.dumps(value)}"


def expand(axes: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Product of the axes: one mapping of dotted configuration keys a run."""
    return [{k: v for group in point for k, v in group.items()} for point in itertools.product(*axes)]


def at(composed: DictConfig, point: dict[str, Any]) -> DictConfig:
    """The composed configuration with a point's values; an unknown key raises."""
    config = copy.deepcopy(composed)
    for key, value in point.items():
        OmegaConf.update(config, key, value, merge=False)
    return config


def compose_runs(name: str, extra: list[str]) -> list[tuple[list[str], RunConfig, Path]]:
    """Every run of a named sweep: its overrides, its checked configuration, and the root of its folder.

    Raises
    ------
    SettingError
        If the run file has no axes, or any of its runs is illegal.
    """
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        base = [f"+run={name}", *extra]
        composed = compose("train", overrides=base)
    axes: list[list[dict[str, Any]]] = OmegaConf.to_container(composed).get("axes")  # type: ignore[assignment, union-attr]
    if not axes:
        raise SettingError(f"run={name}: no `axes` in experiments/conf/run/{name}.yaml; run it with experiments.train")
    return [(base + [as_override(*item) for item in point.items()], *run_config(at(composed, point))) for point in expand(axes)]


def finished(root: Path) -> set[str]:
    """Keys of the configurations that finished under this root or are committed as records."""
    rows = [json.loads(file.read_text()) for file in root.glob("*/run.json")]
    committed = RESULTS / "runs.parquet"
    if committed.exists():
        rows += records.read_table(committed, "runs").to_dict("records")  # type: ignore[arg-type]
    return {RunConfig.from_dict(json.loads(row["config"])).key() for row in rows if row["status"] == "finished"}


def resumable(root: Path) -> dict[str, Path]:
    """Key -> folder of killed runs that left a complete checkpoint (`save_every`)."""
    found = {}
    for file in root.glob("*/run.json"):
        row = json.loads(file.read_text())
        # The marker's name is that of twoclocks.trainers.checkpoint, which would load torch
        if row["status"] == "killed" and list(file.parent.glob("checkpoint-*/twoclocks.json")):
            found[RunConfig.from_dict(json.loads(row["config"])).key()] = file.parent
    return found


class Children:
    """Run subprocesses, and stop those still running when the sweep is told to stop."""

    def __init__(self, jobs: int) -> None:
        threads = str(max(1, (os.cpu_count() or 1) // jobs))  # torch takes every core by default, in every child
        self._environment = {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", "USE_JAX": "0", **os.environ}
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self.stopping = False

    def run(self, overrides: list[str], log: Path) -> int:
        """Run one training process to its end; its output goes to `log`. Returns the exit status."""
        with self._lock:
            if self.stopping:
                return -signal.SIGTERM
            command = [sys.executable, "-m", "experiments.train", *overrides]
            with log.open("wb") as output:
                child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=self._environment)
            self._alive.add(child)
        status = child.wait()
        with self._lock:
            self._alive.discard(child)
        return status

    def stop(self) -> None:
        """Start no more, and terminate what runs."""
        with self._lock:
            self.stopping = True
            for child in self._alive:
                child.terminate()


def mark_unfinished(root: Path) -> None:
    """Close the rows of runs whose process is gone without a word: they were killed."""
    for file in root.glob("*/run.json"):
        row = json.loads(file.read_text())
        if row["status"] == "running":
            write_run(file.parent, row, status="killed", samples_done=samples_done(file.parent))


def positive(name: str, value: str) -> int:
    """A whole number of at least 1 from the command line."""
    if not value.isdecimal() or int(value) < 1:
        raise SettingError(f"{name}={value}: must be a whole number of at least 1")
    return int(value)


def main(arguments: list[str]) -> int:
    """Run what is left of a sweep; returns 0 if every run finished, 1 if some did not, 2 for a bad sweep.

    `jobs=N` runs N at a time (default 1); `limit_s=T` stops after T seconds, leaving finished runs as they are.
    """
    own = {key: value for key, _, value in (a.partition("=") for a in arguments) if key in ("run", "jobs", "limit_s")}
    extra = [a for a in arguments if a.partition("=")[0] not in own]
    try:
        if "run" not in own:
            raise SettingError("name a sweep: run=<file in experiments/conf/run>")
        jobs, limit = positive("jobs", own.get("jobs", "1")), positive("limit_s", own.get("limit_s", str(int(threading.TIMEOUT_MAX))))
        runs = compose_runs(own["run"], extra)
        done = finished(runs[0][2])
    except (TwoclocksError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    root = runs[0][2]
    root.mkdir(parents=True, exist_ok=True)
    begun = resumable(root)
    left = [
        ([*overrides, f"+resume={begun[config.key()]}"] if config.key() in begun else overrides, config)
        for overrides, config, _ in runs
        if config.key() not in done
    ]
    # Seed by seed, so that a sweep cut short is still balanced; then longest first: updates, not samples, take the time.
    left.sort(key=lambda run: (run[1].seed, -run[1].samples / run[1].setting.batch))
    print(f"{own['run']}: {len(runs)} runs, {len(runs) - len(left)} finished before, {len(left)} to go, {len(begun)} of them from a checkpoint")
    failures, children = 0, Children(jobs)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ThreadPoolExecutor(jobs) as pool, Progress(*columns) as progress:
        bar = progress.add_task(own["run"], total=len(left))
        timer = threading.Timer(min(limit, threading.TIMEOUT_MAX), children.stop)
        timer.daemon = True
        timer.start()
        logs = {pool.submit(children.run, overrides, root / f"{config.key()}.log"): config for overrides, config in left}
        try:
            for future in as_completed(logs):
                progress.advance(bar)
                if future.result() != 0:
                    failures += 1
                    progress.print(f"failed: {asdict(logs[future].setting)}, see {root / logs[future].key()}.log")
        except KeyboardInterrupt:
            children.stop()
            raise
        finally:
            timer.cancel()
    mark_unfinished(root)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
