"""Compare rebuilt artefacts with the committed ones: numbers to a relative 1e-4, integers exactly, text without its numbers."""

from __future__ import annotations

import re
from pathlib import Path

RTOL = 1e-4
TINY = 1e-12  # below this, a number is rounding noise about zero
_NUMBER = re.compile(r"(?<![A-Za-z_\d.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![A-Za-z_\d])")


def same_number(old: str, new: str) -> bool:
    """Whether two written numbers agree: exactly if both are integers, else to RTOL."""
    if old == new:
        return True
    if not set(".eE") & set(old + new):
        return int(old) == int(new)
    a, b = float(old), float(new)
    return abs(a - b) <= max(RTOL * max(abs(a), abs(b)), TINY)


def differences(old: str, new: str) -> list[str]:
    """What moved between two texts, at most a few lines: the number with its line, or the first line whose words differ."""
    before, after = old.splitlines(), new.splitlines()
    moved = [f"{len(before)} lines became {len(after)}"] if len(before) != len(after) else []
    for number, (a, b) in enumerate(zip(before, after, strict=False), start=1):
        if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
            moved.append(f"line {number}: {a.strip()[:120]!r} became {b.strip()[:120]!r}")
            continue
        pairs = zip(_NUMBER.findall(a), _NUMBER.findall(b), strict=True)
        moved += [f"line {number}: {x} became {y}  ({_NUMBER.sub('#', a).strip()[:60]})" for x, y in pairs if not same_number(x, y)]
    return moved[:8]


def compare(committed: Path, rebuilt: Path, patterns: list[str]) -> list[str]:
    """Every difference between two trees over the given glob patterns; a file in one tree only is a difference."""
    moved = []
    for pattern in patterns:
        names = {p.relative_to(root) for root in (committed, rebuilt) for p in root.glob(pattern)}
        for name in sorted(names):
            old, new = committed / name, rebuilt / name
            if not old.exists() or not new.exists():
                moved.append(f"{name}: {'not committed' if not old.exists() else 'no longer made'}")
                continue
            moved += [f"{name}: {line}" for line in differences(old.read_text(), new.read_text())]
    return moved
