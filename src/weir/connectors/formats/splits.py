"""What a set of files is divided into, and who reads what: names and numbers only.

A split is a range of bytes of one file. It is named by the file and the first byte,
so that every subtask, on every host and at every parallelism, means the same by it.
"""

from __future__ import annotations

import fnmatch
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from weir.errors import ConfigError

Details = TypeVar("Details")
Format = Literal["text", "jsonl", "csv", "parquet", "arrow"]
FORMATS: tuple[Format, ...] = ("text", "jsonl", "csv", "parquet", "arrow")

_FORMAT_OF_ENDING: dict[str, Format] = {
    ".txt": "text",
    ".log": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_CODEC_OF_ENDING = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


@dataclass(frozen=True, order=True)
class Split:
    """The part of a file from byte `start` to byte `end`: lines that begin in it, row groups whose middle it holds."""

    file: str
    start: int
    end: int
    file_bytes: int

    @property
    def name(self) -> str:
        return f"{self.file}@{self.start}"


def splits_of(file: str, file_bytes: int, split_bytes: int) -> list[Split]:
    """The splits of a file. A compressed file cannot be entered in the middle and is one split.

    >>> [split.name for split in splits_of("a.csv", 25, 10)]
    ['a.csv@0', 'a.csv@10', 'a.csv@20']
    """
    step = file_bytes if codec_of(file) else split_bytes
    starts = range(0, file_bytes, step) if file_bytes else range(0)
    return [Split(file, start, min(start + step, file_bytes), file_bytes) for start in starts]


def split_named(name: str, file_bytes: int, split_bytes: int) -> Split:
    """The split that once had this name."""
    file, _, start = name.rpartition("@")
    end = file_bytes if codec_of(file) else min(int(start) + split_bytes, file_bytes)
    return Split(file, int(start), end, file_bytes)


def owner_of(name: str, parallelism: int) -> int:
    """The subtask that reads a split: the same on every host, unlike Python's own hash."""
    return zlib.crc32(name.encode()) % parallelism


def wanted(found: Mapping[str, Details], pattern: str) -> dict[str, Details]:
    """The files to read, by name: those that match and are not hidden."""
    names = (name for name in sorted(found) if not name.startswith(("_", ".")) and fnmatch.fnmatchcase(name, pattern))
    return {name: found[name] for name in names}


def codec_of(file: str) -> str | None:
    """How a file is compressed, by its ending."""
    return _CODEC_OF_ENDING.get(os.path.splitext(file)[1].lower())


def format_of(file: str, declared: Format | None) -> Format:
    """The format of a file: as declared, or by its ending.

    >>> format_of("a.jsonl.gz", None)
    'jsonl'
    """
    if declared is not None:
        return declared
    plain = os.path.splitext(file)[0] if codec_of(file) else file
    ending = os.path.splitext(plain)[1].lower()
    if ending not in _FORMAT_OF_ENDING:
        raise ConfigError(
            f"the format of file {file!r} cannot be told from its ending; set Files.format to one of "
            f"{', '.join(FORMATS)}, or narrow Files.pattern"
        )
    return _FORMAT_OF_ENDING[ending]


def check_format(format: Format | None) -> Format | None:
    if format is not None and format not in FORMATS:
        raise ConfigError(f"Files.format: {format!r} is not one of {', '.join(FORMATS)}")
    return format
