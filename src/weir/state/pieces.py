"""Work that is done in pieces, so that others may run in between.

Comes in: a generator, each step of which is a piece. Goes out: what it returns. Knows nothing of
what is done.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Pieces: TypeAlias = Generator[None, None, None]
"""Work whose end is all that anybody wants of it."""


def run_through(pieces: Generator[None, None, T]) -> T:
    """All pieces, one after the other; what they return."""
    while True:
        try:
            next(pieces)
        except StopIteration as over:
            found: T = over.value
            return found
