"""`python -m theory [--out theory/derived]`: derive every result, prove the shipped functions, write LaTeX and JSON."""

from __future__ import annotations

import argparse
from pathlib import Path

from theory import critical_batch, failure_laws, local_model


def main() -> None:
    """Write every derived artefact; a failed proof stops with the difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("theory/derived"))
    out = parser.parse_args().out
    for module in (local_model, critical_batch, failure_laws):
        result = module.derive()
        result.write(out)
        print(f"proved {result.name}: {result.statement}")


if __name__ == "__main__":
    main()
