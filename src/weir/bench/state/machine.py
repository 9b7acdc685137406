"""The machine's own pauses, told apart from those of a program that is measured.

Comes in: nothing but time. Goes out: spans in which an idle process could not run, though it wanted to: what the
machine keeps from a process that does nothing is no doing of the program beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias

from weir.errors import WeirError

IDLE = Path(__file__).with_name("idle.py")

Span: TypeAlias = "tuple[float, float]"
"""From when to when, by the monotonic clock."""


class MachinePauses:
    """Watches, as a context, with one idle process on each processor; the spans are there when it is over."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        """In order, none touching another: of all processors together."""
        self._idle: list[subprocess.Popen[str]] = []

    @property
    def processes(self) -> list[int]:
        """The ids of the idle ones."""
        return [idle.pid for idle in self._idle]

    def __enter__(self) -> MachinePauses:
        processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        command = [sys.executable, "-I", str(IDLE)]
        for processor in processors:
            self._idle.append(
                subprocess.Popen([*command, str(processor)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        for idle in self._idle:
            if idle.stdout is None or not idle.stdout.readline():
                raise WeirError("the process that watches for pauses of the machine did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found: list[Span] = []
        for idle in self._idle:
            said, _ = idle.communicate()
            found += [(float(since), float(to)) for since, to in (line.split() for line in said.splitlines())]
        self.spans = joined(found)


def joined(spans: Iterable[Span]) -> list[Span]:
    """The same time, as spans that do not touch.

    >>> joined([(5.0, 6.0), (1.0, 2.0), (1.5, 3.0)])
    [(1.0, 3.0), (5.0, 6.0)]
    """
    found: list[Span] = []
    for since, to in sorted(spans):
        if found and since <= found[-1][1]:
            found[-1] = (found[-1][0], max(to, found[-1][1]))
        else:
            found.append((since, to))
    return found


def beyond(gap: Span, pauses: Sequence[Span]) -> float:
    """How long a gap is, without the time in which the machine stood still.

    >>> beyond((1.0, 2.0), [(0.5, 1.25), (1.5, 1.75)])
    0.5
    """
    return gap[1] - gap[0] - sum(max(0.0, min(gap[1], to) - max(gap[0], since)) for since, to in pauses)
