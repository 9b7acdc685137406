"""What all connections of a job have in common: the secrets that they carry, and when a silent one is given up.

Comes in: a job's settings. Goes out: values that may be shipped to tasks. Shows no secret,
whatever is printed, logged or formatted.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace

from weir.config import Settings, port_range
from weir.runtime.net.certificates import Identity, Role, new_identities
from weir.runtime.secret import Secret

__all__ = ["LOOPBACK", "Lines", "Role", "RunLines", "Secret"]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Lines:
    """How the processes of a job talk to each other."""

    token: Secret
    """Every call must carry it."""
    ping_interval_s: float = 1.0
    """Both ends of a connection say that often that they are there."""
    timeout_s: float = 10.0
    """A connection on which nothing came for so long is over."""
    message_bytes_max: int = 1 << 30
    """The largest request, or answer to one."""

    ports: range = range(1)
    """Where this end may listen; 0: the system chooses."""
    identity: Identity | None = None
    """What this end shows, so that both sides know each other and nobody reads along; None: no TLS."""

    @staticmethod
    def new(settings: Settings) -> Lines:
        """For a door on loopback: with a token of its own."""
        return Lines(
            Secret(secrets.token_urlsafe(32)),
            ping_interval_s=settings.ping_interval_ms / 1_000,
            timeout_s=settings.line_timeout_ms / 1_000,
            message_bytes_max=settings.message_max_bytes,
        )


@dataclass(frozen=True)
class RunLines:
    """The two ends of a run's connections."""

    driver: Lines
    tasks: Lines
    """What Spark ships to the tasks: nothing in it lets them pass for the driver."""

    @staticmethod
    def new(settings: Settings, host: str) -> RunLines:
        """Those of a new run whose driver is reached at `host`; with TLS when that leaves this machine, or if asked."""
        driver = replace(Lines.new(settings), ports=_ports(settings.driver_ports))
        tasks = replace(driver, ports=_ports(settings.task_ports))
        if settings.tls is False or (settings.tls == "auto" and host == LOOPBACK):
            return RunLines(driver, tasks)
        identities = new_identities()
        return RunLines(
            replace(driver, identity=identities[Role.DRIVER]), replace(tasks, identity=identities[Role.TASK])
        )


def _ports(given: str | None) -> range:
    return range(1) if given is None else port_range(given)
