"""How somebody names a checkpoint: by its number, its directory, or a path to it.

Comes in: the text. Goes out: the ids that it names.
"""

from __future__ import annotations

import re

from weir.errors import ConfigError
from weir.ids import CheckpointId, Lineage


def checkpoint_named(text: str) -> CheckpointId:
    """The checkpoint that somebody names, as its directory is called, or by its number.

    >>> checkpoint_named("chk-0000000012"), checkpoint_named("12")
    (12, 12)
    """
    name = text.rstrip("/").rpartition("/")[2]
    if match := re.fullmatch(r"(?:chk-)?(\d+)", name):
        return CheckpointId(int(match[1]))
    raise ConfigError(f"{text!r} names no checkpoint; write it as its directory is called, such as 'chk-0000000012'")


def lineage_named(text: str) -> Lineage | None:
    """The lineage that the path of a checkpoint names, if it does.

    >>> lineage_named("s3://bucket/job/00c0ffee00/chk-0000000012"), lineage_named("12")
    ('00c0ffee00', None)
    """
    above = text.rstrip("/").rpartition("/")[0].rpartition("/")[2]
    return Lineage(above) if re.fullmatch("[0-9a-f]{10}", above) else None
