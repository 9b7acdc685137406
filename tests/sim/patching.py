"""How variants break the engine: something of it is exchanged for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def patched_here(instance: Any, name: str, value: Any) -> Iterator[None]:
    """Of one object only: while something of it is stopped at a storage call, others of its class are what they are."""
    setattr(instance, name, value)
    try:
        yield
    finally:
        delattr(instance, name)


@contextmanager
def all_of(*changes: AbstractContextManager[None]) -> Iterator[None]:
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield
