"""Texts of users as parts of file names."""

from __future__ import annotations

import re
import zlib


def name_of(text: str) -> str:
    """A uid, or another text, as part of a file name; two texts never become the same.

    >>> name_of("out"), name_of("my out/1")
    ('out', 'my_out_1~0729b224')
    """
    plain = re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)
    return plain if plain == text else f"{plain}~{zlib.crc32(text.encode()):08x}"
