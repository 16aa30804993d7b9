"""`python -m analysis reproduce | update`: rebuild every derived artefact from the committed records, and compare or accept.

Order: theory (proofs), a live CPU GRPO comparison, fits, figures, schedules, claims. Everything is built under build/;
`reproduce` compares it with what is committed and changes nothing; `update` copies it over.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from analysis import claims, emit, figures, fits, heldout, load, theory_figures, verify
from twoclocks import records, schema
from twoclocks.errors import TwoclocksError

BUILD = Path("build")
# What is derived, committed and compared; pictures are built too, but byte equality of pixels is not a claim
COMPARED = [
    "theory/derived/*",
    "theory/README.md",
    "analysis/fits/*.json",
    "analysis/figures/*.csv",
    "analysis/claims.md",
    "analysis/claims.json",
    "analysis/heldout.md",
    "analysis/heldout.json",
    "twoclocks/presets/*.json",
    "experiments/results/SCHEMA.md",
]
PICTURES = ["analysis/figures/*.png"]


def module(console: Console, *command: str) -> None:
    """Run `python -m ...`; stop with its exit code if it fails."""
    console.rule(f"python -m {' '.join(command)}")
    status = subprocess.run([sys.executable, "-m", *command], check=False).returncode
    if status:
        sys.exit(status)


def live(console: Console) -> None:
    """Two batches of mini by TRL GRPO on this machine, recorded like any other sweep."""
    module(console, "experiments.sweep", "run=live", "jobs=2", f"out={BUILD / 'live/runs'}")
    module(console, "experiments.collect", str(BUILD / "live/runs"), "--to", str(BUILD / "live/records"))
    runs = records.read(BUILD / "live/records")
    table = Table(title="live GRPO on this machine (too short to decide anything)")
    names = ("batch", "lr", "samples", "updates", "reward", "held-out start", "held-out end", "mean |log ratio|", "seconds")
    for name in names:
        table.add_column(name, justify="right")
    for run in runs.runs.sort_values("batch").itertuples():
        curve = runs.curves[runs.curves["run_id"] == run.run_id]
        accuracy = curve["heldout_acc"].dropna()
        values = (curve["reward"].mean(), accuracy.iloc[0], accuracy.iloc[-1], curve["drift_abs"].mean())
        table.add_row(str(run.batch), f"{run.lr:.1e}", str(run.samples_done), str(curve["update"].max()), *(f"{v:.4f}" for v in values), f"{run.seconds:.0f}")
    console.print(table)


def claims_table(title: str, found: list[claims.Claim]) -> Table:
    """Verdicts for a terminal; claims.md has the pass rules and notes."""
    table = Table(title=title)
    for name in ("claim", "testbed", "statement", "verdict", "effect [95%]", "runs"):
        table.add_column(name, justify="right" if name == "runs" else "left")
    for c in found:
        effect = claims.shown(c.effect) if c.effect else "not determined"
        style = {"supported": "green", "contradicted": "red", "undetermined": "yellow"}[c.verdict]
        table.add_row(c.name, c.testbed, c.statement, f"[{style}]{c.verdict}[/{style}]", effect.replace("[", r"\["), str(len(c.runs)))
    return table


def build(console: Console, *, with_live: bool) -> list[Table]:
    """Build everything under build/; returns the tables of claims."""
    shutil.rmtree(BUILD, ignore_errors=True)
    module(console, "theory", "--out", str(BUILD / "theory/derived"))
    if with_live:
        live(console)
    console.rule("records -> fits -> schedules -> figures -> claims")
    with console.status("reading records"):
        runs = load.records()
    with console.status("fitting clocks"):
        clocks = fits.fit_groups(runs)
    fits.write(clocks, BUILD / "analysis/fits")
    emitted, refused = emit.schedules(clocks)
    emit.write(emitted, refused, BUILD / "twoclocks/presets")
    for name, made in emitted.items():
        console.print(f"[bold]{name}[/bold]\n{made}", highlight=False)
    for name, why in refused.items():
        console.print(f"[bold]{name}[/bold]: no schedule. {why}", highlight=False)
    with console.status("drawing figures"):
        theory_figures.draw_all(BUILD / "analysis/figures")
        figures.draw_all(runs, clocks, emitted, BUILD / "analysis/figures")
    with console.status("judging claims"):
        preregistered, exploratory = claims.judge(runs, fits.TESTBED), claims.beside(runs, fits.TESTBED)
        claims.write(preregistered, exploratory, BUILD / "analysis")
    with console.status("planning on some seeds, looking at the others"):
        heldout.write(heldout.evaluate(runs), BUILD / "analysis")
    document = BUILD / "experiments/results/SCHEMA.md"
    document.parent.mkdir(parents=True)
    document.write_text(schema.schema_markdown())
    return [claims_table("claims, preregistered tests", preregistered), claims_table("beside them: on training reward (exploratory)", exploratory)]


def accept(patterns: list[str]) -> list[Path]:
    """Copy what was built over what is committed; remove what is no longer made."""
    for pattern in patterns:
        for old in Path().glob(pattern):
            if not (BUILD / old).exists():
                old.unlink()
        for new in BUILD.glob(pattern):
            target = new.relative_to(BUILD)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(new, target)
    return sorted(p.relative_to(BUILD) for pattern in patterns for p in BUILD.glob(pattern))


def main() -> int:
    """Exit code 0 if every committed artefact matches, 1 if something moved, 2 for damaged records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("reproduce", "update"))
    parser.add_argument("--no-live", action="store_true", help="skip the live GRPO comparison")
    arguments = parser.parse_args()
    console, start = Console(), time.perf_counter()
    np.seterr(all="ignore")  # log(0) at interval ends is meant; the fits check finiteness themselves
    try:
        tables = build(console, with_live=arguments.what == "reproduce" and not arguments.no_live)
    except TwoclocksError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 2
    if arguments.what == "update":
        for path in accept([*COMPARED, *PICTURES]):
            console.print(f"wrote {path}", highlight=False)
        return 0
    for table in tables:
        console.print(table)
    moved = verify.compare(Path(), BUILD, COMPARED)
    made = sorted(str(p) for pattern in [*COMPARED, "analysis/figures/*.svg", *PICTURES] for p in BUILD.glob(pattern))
    console.print(f"wrote {len(made)} files under {BUILD}/: {', '.join(sorted({str(Path(m).parent) for m in made}))}; figures in {BUILD}/analysis/figures")
    if moved:
        console.print("derived artefacts differ from what is committed (make update accepts):", style="red")
        for line in moved:
            console.print(f"  {line}", markup=False, highlight=False)
        return 1
    compared = sum(len(list(BUILD.glob(pattern))) for pattern in COMPARED)
    console.print(f"every derived artefact matches what is committed ({compared} files compared, {time.perf_counter() - start:.0f} s)", style="green")
    return 0


if __name__ == "__main__":
    sys.exit(main())
