"""What a derivation hands over: statement, assumptions, final expressions, and a proof that the library ships the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import sympy as sp


class ProofError(AssertionError):
    """A shipped function differs from its derivation; the message holds the difference."""


def prove_equal(shipped: sp.Expr, derived: sp.Expr, what: str) -> None:
    """Require that the difference of two expressions simplifies to zero.

    Raises
    ------
    ProofError
        With the simplified difference.
    """
    difference = sp.simplify(shipped - derived)
    if difference != 0:
        raise ProofError(f"{what}: shipped minus derived is {difference}, not 0")


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
    equations : dict of str -> (Expr, Expr)
        Label -> left and right side, exact.
    """

    name: str
    statement: str
    assumptions: tuple[str, ...]
    equations: dict[str, tuple[sp.Expr, sp.Expr]]

    def latex(self) -> str:
        """A LaTeX fragment: assumptions as a list, equations aligned."""
        lines = [f"% {self.statement}", r"\begin{itemize}", *(rf"  \item {a}" for a in self.assumptions), r"\end{itemize}", r"\begin{align}"]
        rows = [rf"  {sp.latex(left)} &= {sp.latex(right)} \label{{eq:{self.name}:{label}}}" for label, (left, right) in self.equations.items()]
        return "\n".join([*lines, " \\\\\n".join(rows), r"\end{align}"]) + "\n"

    def to_json(self) -> str:
        """Exact expressions as SymPy text; no floats."""
        equations = {label: [str(left), str(right)] for label, (left, right) in self.equations.items()}
        return json.dumps({"name": self.name, "statement": self.statement, "assumptions": self.assumptions, "equations": equations}, indent=1) + "\n"

    def write(self, folder: Path) -> None:
        """Write both files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.tex").write_text(self.latex())
        (folder / f"{self.name}.json").write_text(self.to_json())
