"""The version of this package, read by the build and by `weir --version`.

Comes in: nothing. Goes out: one string. Never touches anything else.
"""

from __future__ import annotations

__version__ = "0.2.0"
