"""Texts that nobody is shown: tokens and keys.

Comes in: a text. Goes out: that text, to who asks for it by name, and nothing of it to who
prints, logs or formats the object that holds it.
"""

from __future__ import annotations

import secrets


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
