"""What a derivation hands over: statement, assumptions, final expressions, how they were proven; and the proofs' verbs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sympy as sp
from numpy.typing import ArrayLike


class ProofError(AssertionError):
    """A shipped function or a claim differs from its derivation; the message holds the difference."""


def prove_equal(shipped: sp.Expr, derived: sp.Expr, what: str) -> None:
    """Require that the difference of two expressions simplifies to zero; floats such as an exponent 0.5 are read as rationals.

    Raises
    ------
    ProofError
        With the simplified difference.
    """
    difference = sp.simplify(sp.nsimplify(shipped - derived, rational=True).rewrite(sp.erf))
    if difference != 0:
        raise ProofError(f"{what}: shipped minus derived is {difference}, not 0")


def prove_close(shipped: ArrayLike, derived: ArrayLike, what: str, tolerance: float = 1e-9) -> None:
    """Require that two arrays agree to a tolerance relative to the larger, or to 1.

    Raises
    ------
    ProofError
        With the worst difference.
    """
    a, b = np.asarray(shipped, float), np.asarray(derived, float)
    worst = float(np.max(np.abs(a - b) / np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))))
    if not worst <= tolerance:
        raise ProofError(f"{what}: shipped and derived differ by {worst:.3g} on the grid, more than {tolerance:g}")


def prove(holds: object, what: str) -> None:
    """Require a statement that SymPy, or exact arithmetic, decided to be true.

    Raises
    ------
    ProofError
        If it is anything but true.
    """
    if holds is not True and holds != sp.true:
        raise ProofError(f"{what}: not shown, got {holds}")


@dataclass(frozen=True)
class Result:
    """A derived result.

    Attributes
    ----------
    name : str
        Module name; the files are theory/derived/<name>.tex and .json.
    statement : str
        What is claimed, in words.
    assumptions : tuple of str
        LaTeX text.
    equations : dict of str -> (Expr, Expr)
        Label -> left and right side, exact.
    proven : str
        How, and of which shipped functions.
    simulated : str
        The test or figure that checks it against drawn numbers.
    carries : str
        The claims that rest on it.
    """

    name: str
    statement: str
    assumptions: tuple[str, ...]
    equations: dict[str, tuple[sp.Expr, sp.Expr]]
    proven: str
    simulated: str
    carries: str

    @staticmethod
    def _tex(side: sp.Expr) -> str:
        """LaTeX of one side; a symbol whose name is LaTeX, or looks like a function, is taken as it is written."""
        raw = isinstance(side, sp.Symbol) and any(mark in side.name for mark in "\\(^")
        return side.name if raw else sp.latex(side)

    def latex(self) -> str:
        """A LaTeX fragment: assumptions as a list, equations aligned."""
        lines = [f"% {self.statement}", r"\begin{itemize}", *(rf"  \item {a}" for a in self.assumptions), r"\end{itemize}", r"\begin{align}"]
        rows = [rf"  {self._tex(left)} &= {self._tex(right)} \label{{eq:{self.name}:{label}}}" for label, (left, right) in self.equations.items()]
        return "\n".join([*lines, " \\\\\n".join(rows), r"\end{align}"]) + "\n"

    def to_json(self) -> str:
        """Exact expressions as SymPy text; no floats."""
        equations = {label: [str(left), str(right)] for label, (left, right) in self.equations.items()}
        return json.dumps({"name": self.name, "statement": self.statement, "assumptions": self.assumptions, "equations": equations}, indent=1) + "\n"

    def section(self, number: int) -> str:
        """A section of theory/README.md, with the equations as GitHub renders them."""
        rows = " \\\\\n".join(f"{self._tex(left)} &= {self._tex(right)}" for left, right in self.equations.values())
        return "\n".join(
            [
                f"## {number}. [{self.name}]({self.name}.py)",
                "",
                self.statement,
                "",
                "Assumptions:",
                "",
                *(f"- {a}" for a in self.assumptions),
                "",
                "```math",
                r"\begin{aligned}",
                rows,
                r"\end{aligned}",
                "```",
                "",
                f"- Proven: {self.proven}",
                f"- Simulated: {self.simulated}",
                f"- Carries: {self.carries}",
                "",
            ]
        )

    def write(self, folder: Path) -> None:
        """Write both files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.tex").write_text(self.latex())
        (folder / f"{self.name}.json").write_text(self.to_json())
