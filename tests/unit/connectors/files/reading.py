"""What the tests of the file source share: text files, and all rows of a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.contract.sinks import context
from tests.contract.sources import drain
from weir.connectors import Files
from weir.operators.source import SourceReader

SCHEMA = "n long, word string"


def reader_of(source: Files) -> SourceReader:
    source.validate("in")
    reader = source.reader()
    reader.open(context(), None)
    return reader


def rows_of(source: Files) -> list[tuple[Any, ...]]:
    return drain(reader_of(source), 1000)


def lines(path: Path, *content: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in content))
    return path
