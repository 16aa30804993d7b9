"""Do the intervals cover? `python -m experiments.benchmarks.coverage --out DIR` -> coverage.parquet, power.parquet, summary.json.

Planted sweeps of four batches over 64x on the square-root rule, four drift rates over 8x, three seeds, noise twice as
large at small batches, 30 to 70% of the runs censored on each clock. Asked beforehand: each identified parameter is
covered by its 95% interval in 93 to 97% of 1,000 worlds, and its median error is below 0.2 standard errors. Power: how
often the true law of collapse is within the intervals and both others are excluded, for 3, 5 and 10 seeds.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

from experiments.planted import world
from twoclocks.failure import LAWS
from twoclocks.fitting import fit

A, H0, H1, TARGET = 5.0, 5.0e5, 2.0e3, 0.3
LR32 = (1e-6, 2e-6, 4e-6, 8e-6)
B0, C0, LIFE = 256.0, 2e-6 / 32**0.5, 110_000.0
COVERED = (0.93, 0.97)
BIAS = 0.2


def spread(batch: float) -> float:
    """Log-normal spread between seeds: small batches are noisier."""
    return 0.3 if batch < 200 else 0.15


def life(batch: float, c: float, clipped: bool, law: str) -> float:
    """Median samples to collapse under a named law."""
    b_batch, b_drift = LAWS[law]
    return LIFE * (batch / B0) ** b_batch * (c / C0) ** b_drift


def replicate(seed: int, law: str, seeds: int, model: str, n_boot: int) -> list[dict[str, Any]]:
    """One planted world: a row a parameter, with its interval, its truth, and the share of censored runs."""
    runs = world(a=A, h0=H0, h1=H1, collapse=partial(life, law=law), sd=spread, lr32=LR32, seeds=seeds, rng=seed)
    clocks = fit(runs, target=TARGET, model=model, n_boot=n_boot, rng=np.random.default_rng(seed))  # type: ignore[arg-type]
    cells = clocks.cells
    censored = {"progress": float((~np.isfinite(cells["target_upper"])).mean()), "failure": float((cells["collapse"] != "interval").mean())}
    laws = clocks.laws()
    told = bool(laws) and all((verdict == "within the intervals") == (name == law) for name, verdict in laws.items())
    rows = []
    for row in clocks.summary().itertuples():
        if row.parameter == "unidentified":
            rows.append({"parameter": f"{row.clock} unidentified"})
            continue
        truth = {"a": A, "h0": H0, "h1": H1}
        if clocks.failure is not None:
            own = clocks.failure
            truth |= {"samples": life(own.batch0, own.drift_rate0, False, law), "b_batch": LAWS[law][0], "b_drift": LAWS[law][1]}
        sd = float(clocks.draws[row.clock][row.parameter].std())
        rows.append({"parameter": row.parameter, "truth": truth[row.parameter], "value": row.value, "low": row.low, "high": row.high, "sd": sd})
    return [{"seed": seed, "law": law, "seeds": seeds, "told_apart": told, **{f"censored_{k}": v for k, v in censored.items()}, **row} for row in rows]


def run(worlds: int, law: str, seeds: int, model: str, n_boot: int, jobs: int, first: int = 0) -> pd.DataFrame:
    """All worlds of one kind, numbered from `first`."""
    with ProcessPoolExecutor(jobs) as pool:
        found = pool.map(partial(replicate, law=law, seeds=seeds, model=model, n_boot=n_boot), range(first, first + worlds), chunksize=5)
        return pd.DataFrame([row for rows in found for row in rows])


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Coverage with its binomial error, median bias in standard errors, and the share of worlds where a parameter was estimated."""
    worlds = table["seed"].nunique()
    table = table[table["value"].notna()]
    table = table.assign(covered=(table["low"] <= table["truth"]) & (table["truth"] <= table["high"]), error=(table["value"] - table["truth"]) / table["sd"])
    groups = table.groupby("parameter")
    found = pd.DataFrame({"coverage": groups["covered"].mean(), "median_bias": groups["error"].median(), "estimated": groups.size() / worlds})
    found["standard_error"] = np.sqrt(found["coverage"] * (1 - found["coverage"]) / groups.size())
    return found.reset_index()


def main(out: Annotated[Path, typer.Option()], worlds: int = 1000, power_worlds: int = 200, n_boot: int = 200, jobs: int = 2, model: str = "curvature") -> None:
    """Run the benchmark and write what was found."""
    out.mkdir(parents=True, exist_ok=True)
    table = run(worlds, "drift", 3, model, n_boot, jobs)
    table.to_parquet(out / "coverage.parquet", compression="zstd")
    found = summarise(table)
    found["within"] = found["coverage"].between(*COVERED) & (found["median_bias"].abs() < BIAS)
    typer.echo(found.to_string(index=False, float_format=lambda v: f"{v:.3f}"))
    censored = {clock: float(table[f"censored_{clock}"].mean()) for clock in ("progress", "failure")}
    typer.echo(f"censored: {censored}")
    power = [
        {"law": law, "seeds": seeds, "power": float(run(power_worlds, law, seeds, model, n_boot, jobs).groupby("seed")["told_apart"].first().mean())}
        for seeds in (3, 5, 10)
        for law in LAWS
    ]
    typer.echo(pd.DataFrame(power).to_string(index=False))
    facts = {
        "worlds": worlds,
        "power_worlds": power_worlds,
        "n_boot": n_boot,
        "model": model,
        "censored": censored,
        "coverage": found.to_dict("records"),
        "power": power,
    }
    (out / "summary.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
