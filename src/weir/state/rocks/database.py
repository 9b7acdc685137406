"""One RocksDB database: byte strings by byte strings, frozen by hard links.

Comes in: a local directory of its own, and a share of the task's memory. Goes out: what
was written, and directories of links that hold the database as it was. There is no
write-ahead log: what a crash loses is in the last checkpoint. Knows no types.

Freezing must not hold the stream while the last writes go to disk. So what is written
after a freeze is held back in memory until the links are made, which takes as long as
RocksDB's own threads need for the flush; reads look there first.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import Any

import rocksdict as rocks

from weir.errors import CorruptCheckpoint
from weir.state.local_disk import is_full, refusal

DATABASE = "database"
"""The live database's directory, below that of its state."""

HELD_ENTRIES_MAX = 65_536
"""Entries that are held back at most; then the stream waits for the flush."""

CACHE_SHARE = 7 / 8
"""Of the budget; the rest is for what the allocator cannot use again, and for open files."""

SCAN_READAHEAD_BYTES = 2 << 20
WRITE_BUFFER_BYTES_MAX = 64 << 20
WRITE_BUFFER_BYTES_MIN = 256 << 10
BLOCK_BYTES = 4 << 10
BLOOM_BITS = 10
MEMTABLE_BLOOM_RATIO = 0.02
FILE_BYTES = 64 << 20
SORTED_RUNS_MAX = 8
"""From so many on the newest are merged: fewer would speed up reads, but more would be uploaded again."""

BACKGROUND_JOBS = 2
POLL_SECONDS = 0.001
READ_ONLY_FILES_MAX = 64
FLUSH_PENDING = "rocksdb.num-immutable-mem-table"
FAILURES = "rocksdb.background-errors"


class Memory:
    """What the databases of one operator share: blocks that were read, and what was written and is not on disk."""

    def __init__(self, budget_bytes: int) -> None:
        size_bytes = int(budget_bytes * CACHE_SHARE)
        # One that is read without a lock. Its table is made for entries of about this size.
        self.cache = rocks.Cache.new_hyper_clock_cache(size_bytes, BLOCK_BYTES)
        # Counted in the cache, so that both together stay within the budget.
        self.buffers = rocks.WriteBufferManager.new_write_buffer_manager_with_cache(size_bytes // 2, False, self.cache)
        self.write_buffer_bytes = min(max(size_bytes // 8, WRITE_BUFFER_BYTES_MIN), WRITE_BUFFER_BYTES_MAX)

    def options(self) -> Any:
        blocks = rocks.BlockBasedOptions()
        blocks.set_block_cache(self.cache)
        blocks.set_block_size(BLOCK_BYTES)
        blocks.set_bloom_filter(BLOOM_BITS, False)
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        blocks.set_format_version(5)
        blocks.set_checksum_type(rocks.ChecksumType.xxh3())
        options = rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(blocks)
        options.set_write_buffer_manager(self.buffers)
        options.set_write_buffer_size(self.write_buffer_bytes)
        options.set_max_write_buffer_number(3)
        # Most keys that are read were not written just now: a filter spares the search among those that were.
        options.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
        options.set_memtable_whole_key_filtering(True)
        # LZ4 would cost a seventh of all reads that miss the cache.
        options.set_compression_type(rocks.DBCompressionType.none())
        # Keys come in no order, so that with levels each change is rewritten ten times, and uploaded as often.
        options.set_compaction_style(rocks.DBCompactionStyle.universal())
        options.set_level_zero_file_num_compaction_trigger(SORTED_RUNS_MAX)
        options.set_target_file_size_base(FILE_BYTES)
        options.set_max_background_jobs(BACKGROUND_JOBS)
        options.set_max_log_file_size(1 << 20)
        options.set_keep_log_file_num(1)
        options.set_stats_dump_period_sec(0)
        return options


class Database:
    """A database that one thread reads and writes; `link` may be called by another."""

    def __init__(self, directory: str, memory: Memory) -> None:
        """Opens what is in the directory, or makes it."""
        self.path = directory
        os.makedirs(directory, exist_ok=True)
        options = memory.options()
        # Given by column family too: else rocksdict takes the ones that it finds on disk, with a cache of their own.
        try:
            self._database = rocks.Rdict(directory, options, column_families={"default": options})
        except Exception as error:
            if is_full(error):
                raise refusal(error, directory) from error
            raise
        self._write_options = rocks.WriteOptions()
        self._write_options.disable_wal = True  # type: ignore[method-assign, assignment]
        self._write_options.memtable_insert_hint_per_batch = True
        self._closed = False
        self._links: list[Links] = []
        """Frozen, and not linked yet."""
        self._held: dict[bytes, bytes | None] = {}
        """Written since then; None: deleted."""

    @property
    def sequence(self) -> int:
        """Grows with each write."""
        return int(self._database.latest_sequence_number()) + len(self._held)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The value of each key, or None. Fastest when the keys are sorted."""
        if not keys:
            return []
        found: Any = self._database.get(keys)  # type: ignore[arg-type]
        if self._held:
            held = self._held
            return [held.get(key, value) for key, value in zip(keys, found)]
        values: list[bytes | None] = found
        return values

    def get(self, key: bytes) -> bytes | None:
        if key in self._held:
            return self._held[key]
        value: bytes | None = self._database.get(key)
        return value

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Fastest when the keys are sorted."""
        if self._links:
            self._held.update(puts)
            self._held.update(dict.fromkeys(deletes))
            self.settle(wait=len(self._held) > HELD_ENTRIES_MAX)
            return
        self._write(puts, deletes)

    def _write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        batch = rocks.WriteBatch(raw_mode=True)
        for key, value in puts:
            batch[key] = value
        for key in deletes:
            del batch[key]
        if len(batch):
            try:
                self._database.write(batch, self._write_options)
            except Exception as error:
                raise refusal(error, self.path) from error

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All entries whose keys begin so, in their order."""
        self.settle(wait=True)
        return scan(self._database, prefix)

    def scan_from(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All entries from a key on; none while something is being frozen."""
        self.settle(wait=False)
        if self._links:
            return iter(())
        items: Any = self._database.items(from_key=key)
        return iter(items)

    # --- Freezing ---

    @property
    def is_frozen(self) -> bool:
        """Whether links are still to be made."""
        return bool(self._links)

    def freeze(self, directory: str) -> Links:
        """The database as it is now; its links are made in that directory when the flush is through."""
        self.settle(wait=True)
        failures = self.failures
        self._flush()
        links = Links(self, directory, failures)
        self._links.append(links)
        return links

    def settle(self, *, wait: bool) -> None:
        """Make the links that are due, if the flush is through, and write what was held back for them."""
        if not self._links:
            return
        for links in self._links:
            if not wait and not links.is_over and self._flushing:
                return
            try:
                links.make()
            except OSError:
                pass  # whoever writes the snapshot is told
        self._links = []
        held, self._held = self._held, {}
        puts = [(key, value) for key, value in held.items() if value is not None]
        self._write(puts, [key for key, value in held.items() if value is None])

    @property
    def _flushing(self) -> bool:
        return bool(self._database.property_int_value(FLUSH_PENDING))

    @property
    def failures(self) -> int:
        """How often RocksDB's own threads could not write."""
        return int(self._database.property_int_value(FAILURES) or 0)

    def link(self, directory: str, failures: int) -> None:
        """Make a directory of links, or OSError. `failures`: how many there had been when the flush began."""
        if self._closed:
            raise OSError("the database was closed before its state was written")
        while self._flushing:
            if self.failures > failures:
                failures = self.failures
                self._flush(wait=True)  # says why, where it is still so
            time.sleep(POLL_SECONDS)
        try:
            rocks.Checkpoint(self._database).create_checkpoint(directory)
        except Exception as error:
            if is_full(error):
                raise refusal(error, self.path) from error
            raise OSError(f"the database {self.path} cannot be frozen: {error}") from error

    def _flush(self, *, wait: bool = False) -> None:
        """Begin to write what is in memory only."""
        try:
            self._database.flush(wait)
        except Exception as error:
            raise refusal(error, self.path) from error

    def close(self) -> None:
        """May be called again."""
        self._links = []
        if not self._closed:
            self._closed = True
            try:
                self._database.close()
            except Exception as error:
                if not is_full(error):  # it writes what nobody reads any more
                    raise


class Links:
    """A directory of links to the files of a database as it was; made when they are first wanted."""

    def __init__(self, database: Database, directory: str, failures: int) -> None:
        self.directory = directory
        self.is_over = False
        """Made, failed, or no longer wanted: the database may change again."""
        self._database = database
        self._failures = failures
        self._lock = threading.Lock()
        self._error: OSError | None = None

    def make(self) -> None:
        """Make them, unless they are made; OSError, also for whoever comes later, when that fails."""
        with self._lock:
            if not self.is_over:
                try:
                    self._database.link(self.directory, self._failures)
                except OSError as error:
                    self._error = error
                self.is_over = True
            if self._error is not None:
                raise self._error

    def remove(self) -> None:
        with self._lock:
            self.is_over = True
            for path in (self.directory, f"{self.directory}.tmp"):
                shutil.rmtree(path, ignore_errors=True)


def open_read_only(directory: str) -> Any:
    """A database that nobody changes, or CorruptCheckpoint."""
    options = rocks.Options(raw_mode=True)
    options.set_max_open_files(READ_ONLY_FILES_MAX)
    read_only = rocks.AccessType.read_only(False)
    try:
        return rocks.Rdict(directory, options, column_families={"default": options}, access_type=read_only)
    except Exception as error:
        raise CorruptCheckpoint(f"the files of a state are no database: {error}") from error


def scan(database: Any, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
    """The entries whose keys begin so, in their order."""
    if not prefix:
        options = rocks.ReadOptions()
        options.set_readahead_size(SCAN_READAHEAD_BYTES)
        whole: Iterator[tuple[bytes, bytes]] = database.items(read_opt=options)
        return whole
    # Not by an upper bound: rocksdict's iterators outlive the options that hold it, and then stop anywhere.
    return takewhile(lambda entry: entry[0].startswith(prefix), database.items(from_key=prefix))
