"""JSON that tells whether it is still what was written.

Comes in: a value, or bytes. Goes out: the other of the two. Reads and writes no file.

    {"body":{…},"sha256":"…"}

is ordinary JSON, but its frame and the body are compared byte for byte: any altered or
missing byte is detected. The frame is the same for all versions of what it holds, so that
damage is told from a version that is too new.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from weir.errors import CorruptCheckpoint
from weir.snapshot.parts import Json

_FRAME_START = b'{"body":'
_FRAME_MIDDLE = b',"sha256":"'
_FRAME_END = b'"}'
_DIGEST_LENGTH = 64


def seal(body: Json) -> bytes:
    """The bytes to write."""
    data = json.dumps(body, separators=(",", ":")).encode("ascii")
    return b"".join((_FRAME_START, data, _FRAME_MIDDLE, _digest(data), _FRAME_END))


def unseal(data: bytes, what: str) -> Any:
    """The value, or CorruptCheckpoint, which says what it was, when any byte is not what was written."""
    tail = len(_FRAME_MIDDLE) + _DIGEST_LENGTH + len(_FRAME_END)
    body = data[len(_FRAME_START) : -tail]
    if data != b"".join((_FRAME_START, body, _FRAME_MIDDLE, _digest(body), _FRAME_END)):
        raise CorruptCheckpoint(
            f"{what} ({len(data)} bytes) is not what was written: it was altered or cut off; restore the file from a "
            "backup"
        )
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpoint(f"{what} has a body that is not JSON: {error}") from error


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")
