"""Containers that Python's cycle collector does not walk through.

Comes in: a dictionary or a list of state. Goes out: nothing; the collector no longer sees
it. A full collection touches every entry of every container that it sees: a quarter of a
second for five million, in the middle of the stream. State holds values and never
cycles, so that there is nothing in it to collect; it is freed as ever by its references.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

untrack: Callable[[Any], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))
"""Hide a container from the collector. Python may see it again once another container is put into it."""
