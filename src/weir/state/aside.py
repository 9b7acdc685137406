"""Errands of the stream that others can do while it goes on: local files that are written and removed.

Comes in: work that touches nothing but what does not change. Goes out: whether it is over. Here it is
done at once; a task has a thread for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Errand(Protocol):
    """Something that is being done. For the thread that asked for it."""

    def is_over(self, wait_s: float = 0.0) -> bool:
        """Whether it is, after so long at most; raises what the work has raised."""


class Aside(Protocol):
    """Where errands are done, one after the other."""

    def run(self, work: Callable[[], None]) -> Errand:
        """Do this, sooner or later."""


class AtOnce:
    """Does an errand before anything else."""

    def run(self, work: Callable[[], None]) -> Errand:
        work()
        return _Over()


class _Over:
    def is_over(self, wait_s: float = 0.0) -> bool:
        return True
