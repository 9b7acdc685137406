"""What all connections of a job have in common: the secret that they carry, and when a silent one is given up.

Comes in: a job's settings. Goes out: values that may be shipped to tasks. Shows no secret,
whatever is printed, logged or formatted.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from weir.config import Settings, duration_ms, size_bytes


class Secret:
    """A text that only `reveal` shows. Survives pickling: tasks must have it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and secrets.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self._text,)


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

    @staticmethod
    def new(settings: Settings) -> Lines:
        """Those of a new run, or of another door of it: with a token of their own."""
        return Lines(
            Secret(secrets.token_urlsafe(32)),
            ping_interval_s=duration_ms(settings.ping_interval) / 1_000,
            timeout_s=duration_ms(settings.line_timeout) / 1_000,
            message_bytes_max=size_bytes(settings.message_max),
        )
