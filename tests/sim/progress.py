"""Which seeds have passed, kept in .sim/ for a run that goes on later. Another version of the sources begins anew."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / ".sim"


class Progress:
    """The seeds that were run with these sources, and one variant or none."""

    def __init__(self, variant: str | None) -> None:
        self._path = DIRECTORY / f"{variant or 'sound'}-{_sources()}.txt"
        self._file: TextIO | None = None
        self.passed: set[int] = set()

    def __enter__(self) -> Progress:
        DIRECTORY.mkdir(exist_ok=True)
        if self._path.exists():
            lines = [line.split() for line in self._path.read_text(encoding="utf-8").splitlines()]
            self.passed = {int(line[0]) for line in lines if line[1:] == ["passed"]}
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def note(self, seed: int, *, passed: bool) -> None:
        if self._file is not None:
            self._file.write(f"{seed} {'passed' if passed else 'failed'}\n")
            self._file.flush()


def _sources() -> str:
    """What the meaning of a seed depends on."""
    digest = hashlib.sha256()
    for path in sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tests" / "sim").glob("*.py")]):
        digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]
