"""Files as a source: text, jsonl, csv, parquet and Arrow, a fixed set or a watched directory.

Comes in: a directory or a file, local or by storage URI. Goes out: batches, and
positions by split. Each file is read exactly once, however often the job restarts
and at whatever parallelism. Never writes, except malformed lines to their side files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from weir.config import Duration, Settings, Size, duration_ms, size_bytes
from weir.connectors.files.known import KnownFiles, are_unchanged, check_link
from weir.connectors.files.reader import FilesReader, Opened
from weir.connectors.formats.arrow import arrow_schema_of
from weir.connectors.formats.line_blocks import BLOCK_BYTES
from weir.connectors.formats.parquet import file_schema
from weir.connectors.formats.readers import OnError, Reading
from weir.connectors.formats.splits import Format, check_format, format_of, wanted
from weir.errors import ConfigError, DataError, SchemaError, shown
from weir.operators.source import Source, SourceReader
from weir.runtime.ports import Opener
from weir.runtime.storage.locations import absolute_location, shown_location, split_location
from weir.runtime.storage.opening import open_writable, opener_of
from weir.runtime.storage.stores.details import FileDetails
from weir.runtime.storage.stores.readable import ReadableOpener, ReadableStorage
from weir.schema import format_schema, parse_schema
from weir.snapshot.parts import Json

TEXT_SCHEMA = pa.schema([("value", pa.string())])


class Files(Source):
    """The rows of the files in a directory, or of one file.

    path:       a directory, or one file; local or a storage URI
    format:     "text" (one column, `value string`), "jsonl", "csv", "parquet" or "arrow"; None: by each file's ending
    schema:     DDL or a pyarrow schema; may be left out for text, and for parquet and arrow where there is a file
    watch:      None reads the files that are there at the start, and ends; a duration looks for new files that often
    pattern:    which names to read, such as "*.csv"; names that begin with '_' or '.' never are
    on_error:   a malformed line: "fail", "skip", or "side_file": write it to a file below `side_file` and go on
    header:     csv: whether the first line of each file names its columns
    delimiter:  csv: what stands between values
    split_size: large files are read by several subtasks, in parts of this size; compressed ones are not
    check_modified: whether a file that has another time of modification than when it was first seen has changed, unless
                its content is known to be the same, as that of small files is. False: only its length tells
    follow_links: whether to read links in the directory that point to files outside of it; without it they are an error

    Files must appear whole (write elsewhere, then rename) and must not change: one that did is a DataError.
    Directories below `path` are not looked into. A watched
    directory's checkpoints name every file ever read, so move old files away, and watch a new directory, in time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        format: Format | None = None,
        schema: str | pa.Schema | None = None,
        *,
        watch: Duration | None = None,
        pattern: str = "*",
        on_error: OnError = "fail",
        side_file: str | os.PathLike[str] | None = None,
        header: bool = True,
        delimiter: str = ",",
        split_size: Size = "16MB",
        check_modified: bool = True,
        follow_links: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = _location(path, "path")
        self.format = check_format(format)
        self.pattern = pattern
        self.watch_ms = None if watch is None else duration_ms(watch, "Files.watch")
        self.on_error = on_error
        self.side_file = None if side_file is None else _location(side_file, "side_file")
        self.header = header
        self.delimiter = delimiter
        self.split_bytes = size_bytes(split_size, "Files.split_size")
        self.check_modified = check_modified
        self.follow_links = follow_links
        self.clock = clock
        self.block_bytes = BLOCK_BYTES
        self._schema = None if schema is None else parse_schema(schema)
        self._listed: dict[str, FileDetails] | None = None
        self._check_settings()

    def __repr__(self) -> str:
        return f"Files({shown(self.path)!r}{'' if self.format is None else f', {self.format!r}'})"

    @property
    def schema(self) -> pa.Schema:
        if self._schema is None:
            self._schema = TEXT_SCHEMA if self.format == "text" else self._schema_of_first_file()
        return self._schema

    @property
    def bounded(self) -> bool:
        return self.watch_ms is None

    def is_read_to_end(self, positions: Sequence[Json]) -> bool:
        """A fixed set is what it was at the first start: its files are all read, and none was changed since."""
        listed, has_rest = self._listed, any(position["splits"] for position in positions)
        if listed is None or not self.bounded or not positions or has_rest:
            return False
        return all(are_unchanged(position, listed, check_modified=self.check_modified) for position in positions)

    def validate(self, name: str) -> None:
        """Everything that can be known before the start is checked here, where the user sees it."""
        try:
            opener = self.opener(Settings())
            storage, directory, pattern = self._located(opener)
            found = wanted(storage.details(""), pattern)
            reading = self._reading(storage, directory, opener, operator=repr(name), uid=name)
            for file, details in found.items():
                format_of(file, self.format)
                check_link(file, details, reading.where(file), follow=self._follows(directory))
            for file in [file for file, details in found.items() if details.size_bytes][:1]:
                reading.check(file)
        except (ConfigError, DataError, SchemaError) as error:
            if str(error).startswith(f"source {name!r}"):
                raise
            raise type(error)(f"source {name!r}: {error}") from error
        except OSError as error:
            raise ConfigError(f"source {name!r}: {shown_location(self.path)} cannot be read: {error}") from error
        if self.side_file is not None:
            what = f"source {name!r}: the directory for malformed lines"
            open_writable(self.side_file, what, self.opener(Settings()))
        # Listed once, so that all subtasks read the same set, also after a restart without a checkpoint.
        self._listed = found if self.bounded else None

    def reader(self) -> SourceReader:
        return FilesReader(self._open, watch_ms=self.watch_ms, split_bytes=self.split_bytes, clock=self.clock)

    def opener(self, settings: Settings) -> ReadableOpener:
        """What opens the files, for a job of these settings."""
        return opener_of(settings)

    def _open(self, operator: str, uid: str, settings: Settings) -> Opened:
        """For a reader: how to read, what is known of the files, and a function that lists those to read."""
        opener = self.opener(settings)
        storage, directory, pattern = self._located(opener)
        reading = self._reading(storage, directory, opener, operator=operator, uid=uid)
        known = KnownFiles(
            storage,
            where=reading.where,
            check_modified=self.check_modified,
            follow_links=self._follows(directory),
        )
        reading = replace(reading, storage=known.as_storage())
        if self._listed is not None:
            return reading, known, self._listed.copy
        return reading, known, lambda: wanted(storage.details(""), pattern)

    def _follows(self, directory: str) -> bool:
        """A link that is named itself is followed, too."""
        return self.follow_links or directory != shown_location(self.path)

    def _located(self, opener: ReadableOpener) -> tuple[ReadableStorage, str, str]:
        """The storage of the directory, how messages name it, and the pattern of the names to read."""
        storage, where = opener(self.path, create=False), shown_location(self.path)
        if storage.is_file(""):
            directory, file = split_location(self.path)
            return opener(directory, create=False), shown_location(directory), _literally(file)
        if not storage.is_directory(""):
            raise ConfigError(f"there is no file or directory at {where}; mend the path, or create the directory")
        return storage, where, self.pattern

    def _reading(self, storage: ReadableStorage, directory: str, opener: Opener, *, operator: str, uid: str) -> Reading:
        return Reading(
            storage=storage,
            location=directory,
            operator=operator,
            uid=uid,
            schema=self.schema,
            format=self.format,
            header=self.header,
            delimiter=self.delimiter,
            on_error=self.on_error,
            side_file=self.side_file,
            opener=opener,
            block_bytes=self.block_bytes,
        )

    def _check_settings(self) -> None:
        if self.on_error not in ("fail", "skip", "side_file"):
            raise ConfigError(f"Files.on_error: {self.on_error!r} is not one of fail, skip, side_file")
        if (self.on_error == "side_file") != (self.side_file is not None):
            raise ConfigError("Files: on_error='side_file' and side_file=directory go together; give both or neither")
        if self.split_bytes < 1:
            raise ConfigError("Files.split_size: must be at least 1 byte")
        is_text = isinstance(self.delimiter, str)
        if not is_text or len(self.delimiter.encode()) != 1 or self.delimiter in '"\r\n':
            raise ConfigError(
                f"Files.delimiter: {self.delimiter!r} is not one character of ASCII, quotes and ends apart"
            )
        is_one_string = self._schema is None or (len(self._schema) == 1 and self._schema.types[0] == pa.string())
        if self.format == "text" and not is_one_string:
            raise SchemaError(
                f"Files: text has one string column, such as 'value string'; found ({format_schema(self._schema)})"
            )

    def _schema_of_first_file(self) -> pa.Schema:
        storage, directory, pattern = self._located(self.opener(Settings()))
        for file in (file for file, size in wanted(storage.sizes(""), pattern).items() if size):
            format = format_of(file, self.format)
            if format == "text":
                return TEXT_SCHEMA
            if format == "parquet":
                return file_schema(storage, file, f"{directory}/{file}")
            if format == "arrow":
                return arrow_schema_of(storage, file, f"{directory}/{file}")
            raise SchemaError(f"{self!r}: {format} needs a schema, such as schema='a long, b string'")
        raise SchemaError(
            f"{self!r}: there is no file yet to take the schema from; give one, such as 'a long, b string'"
        )


def _location(given: str | os.PathLike[str], setting: str) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise ConfigError(
            f"Files.{setting}: {given!r} is no location; give a path, or a URI such as s3://bucket/directory"
        )
    return absolute_location(given)


def _literally(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
