"""How often, where and how strictly a job snapshots itself: frozen, and checked when made."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Literal, TypeAlias

from weir.config.checks import check_at_least, check_booleans
from weir.config.units import Bytes, Duration, Milliseconds, Size, duration_ms, parse_units
from weir.errors import ConfigError, shown

Mode: TypeAlias = Literal["exactly_once", "at_least_once", "none"]
OnRestart: TypeAlias = Literal["continue", "from_the_beginning"]


@dataclass(frozen=True)
class Checkpoints:
    """How often, where and how strictly a job snapshots itself.

    every:              time from one trigger to the next; None: only on request and at the end
    to:                 a storage URI (file, s3, gs, hdfs …), a local path, or None: the driver's memory
    mode:               "exactly_once" aligns, "at_least_once" does not, "none" takes no periodic checkpoints of state
    on_restart:         with mode="none" and a restart strategy: "continue" loses the state, and sources go on behind
                        what they had read, so that every row counts at most once, and every `every` sinks commit what
                        they have; "from_the_beginning" starts anew, from the last checkpoint that was asked for if
                        there is one, and commits at the end only
    timeout:            a checkpoint that takes longer is aborted
    min_pause:          least time between the end of one and the start of the next
    max_concurrent:     how many may be under way at once
    tolerable_failures: consecutive failures before the attempt is failed
    retain:             how many completed checkpoints to keep
    memory_limit:       with to=None: the most that the driver holds
    exclusive_storage:  True promises that no other process ever writes there; needed only where storage cannot create
                        a file atomically, so that two drivers could both take themselves for the owner
    """

    every: Duration | None = "10s"
    to: str | None = None
    mode: Mode = "exactly_once"
    on_restart: OnRestart = "continue"
    timeout: Duration = "10m"
    min_pause: Duration = 0
    max_concurrent: int = 1
    tolerable_failures: int = 3
    retain: int = 2
    memory_limit: Size = "256MB"
    exclusive_storage: bool = False

    timeout_ms = Milliseconds("timeout")
    min_pause_ms = Milliseconds("min_pause")
    memory_limit_bytes = Bytes("memory_limit")

    def __repr__(self) -> str:
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return f"Checkpoints({', '.join(f'{name}={value!r}' for name, value in values if name != 'to')}, to={self._to})"

    @property
    def _to(self) -> str:
        return repr(None if self.to is None else shown(self.to))

    def __post_init__(self) -> None:
        if self.to is not None and not (isinstance(self.to, (str, os.PathLike)) and os.fspath(self.to).strip()):
            raise ConfigError(f"Checkpoints.to: {self.to!r} is no location; give a path, a URI, or None for memory")
        check_booleans(self, "exclusive_storage")
        if self.mode not in ("exactly_once", "at_least_once", "none"):
            raise ConfigError(f"Checkpoints.mode: {self.mode!r} is not one of exactly_once, at_least_once, none")
        if self.on_restart not in ("continue", "from_the_beginning"):
            raise ConfigError(f"Checkpoints.on_restart: {self.on_restart!r} is not one of continue, from_the_beginning")
        if self.on_restart != "continue" and self.mode != "none":
            raise ConfigError(
                f"Checkpoints.on_restart: with mode={self.mode!r} a restart goes on from the last checkpoint; "
                f'{self.on_restart!r} needs mode="none"'
            )
        for name, least in (("max_concurrent", 1), ("tolerable_failures", 0), ("retain", 1)):
            check_at_least(self, name, least)
        if self._every_ms is not None and self._every_ms < 1:
            raise ConfigError("Checkpoints.every: must be at least 1ms; write None to take checkpoints only on request")
        parse_units(self)
        if self.timeout_ms < 1:
            raise ConfigError("Checkpoints.timeout: must be at least 1ms")

    @cached_property
    def _every_ms(self) -> int | None:
        return None if self.every is None else duration_ms(self.every, "Checkpoints.every")

    @property
    def interval_ms(self) -> int | None:
        """Time between two periodic triggers; None when there are none."""
        return None if self.mode == "none" else self._every_ms

    @property
    def commit_interval_ms(self) -> int | None:
        """Time between two commits of what sinks have written, where no state is snapshotted; None: not on the way."""
        return self._every_ms
