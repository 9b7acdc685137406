"""A reader's end of the feed: batches of a Spark job come in, wait a little, and are handed out.

Comes in: connections, one for each split, from Spark tasks (spark/feed.py). Goes out: batches, and how many rows of
each split were handed out. Never holds more than a few batches of a split: its sender pauses beyond that.

    reader to sender   position {rows it has, or null: all; credit} | credit | taken | turned away {why}
    sender to reader   batches from that position on | end {rows in all}
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from weir.errors import ProtocolViolation
from weir.ids import AttemptId
from weir.runtime.net.connection import Connection
from weir.runtime.net.flight import FrameServer, Handlers, connect
from weir.runtime.net.lines import Lines
from weir.runtime.net.wire_format import ElementCodec, encode_credit

POSITION, END, TAKEN, TURNED_AWAY = range(80, 84)

SPLIT_BATCHES_MAX = 4
"""Batches of one split that may wait in a reader."""


@dataclass(frozen=True)
class FeedAddress:
    """Where the driver's end listens, and what proves that a caller belongs to the job."""

    address: str
    lines: Lines

    @property
    def host(self) -> str:
        return self.address.split("://", 1)[1].rsplit(":", 1)[0].strip("[]")


def message(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def opened(frame: pa.Buffer) -> dict[str, Any]:
    """What a frame says behind its kind."""
    found: dict[str, Any] = json.loads(frame.slice(1).to_pybytes())
    return found


@dataclass
class _Split:
    """One partition, as its reader sees it."""

    accepted_rows: int = 0
    handed_rows: int = 0
    total_rows: int | None = None
    sender: Connection | None = None
    """Of the Spark tasks that came for it the newest; only that one is listened to."""
    waiting: deque[pa.RecordBatch] = field(default_factory=deque)

    @property
    def done(self) -> bool:
        return self.total_rows == self.handed_rows


class FeedInbox:
    """One reader's end: takes batches from Spark tasks, at most SPLIT_BATCHES_MAX for each split."""

    def __init__(
        self,
        feed: FeedAddress,
        schema: pa.Schema,
        *,
        host: str,
        index: int,
        attempt: AttemptId,
        taken: Mapping[int, int | None],
    ) -> None:
        """`taken`: rows that were handed out of each split before; None for a split that is done."""
        self.complete = False
        """Spark has delivered every split."""
        self.failure: str | None = None
        self._lock = threading.Lock()
        self._splits = {split: _restored(rows) for split, rows in taken.items()}
        self._turns: deque[int] = deque()
        self._closed = False
        self._codec = ElementCodec(schema)
        self._server = FrameServer(host, feed.lines, self._accept)
        self._hub = connect(
            feed.address,
            feed.lines,
            {"attempt": attempt, "index": index, "address": self._server.address},
            on_frame=self._hear,
            on_close=self._hub_lost,
        )

    def take(self, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of some split; several waiting batches of it become one."""
        with self._lock:
            if not self._turns:
                return None
            number = self._turns.popleft()
            split = self._splits[number]
            batches, rows, freed = [], 0, 0
            while split.waiting and rows < rows_max:
                batch = split.waiting.popleft()
                if rows + batch.num_rows > rows_max:
                    split.waiting.appendleft(batch.slice(rows_max - rows))
                    batch = batch.slice(0, rows_max - rows)
                else:
                    freed += 1
                batches.append(batch)
                rows += batch.num_rows
            if split.waiting:
                self._turns.append(number)
            split.handed_rows += rows
            if freed and split.sender is not None:
                split.sender.send(encode_credit(0, freed))
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    @property
    def empty(self) -> bool:
        return not self._turns

    def taken(self) -> dict[int, int | None]:
        """Rows handed out of each split; None once it is done."""
        with self._lock:
            return {number: None if split.done else split.handed_rows for number, split in self._splits.items()}

    def close(self) -> None:
        self._closed = True
        self._hub.close()
        self._server.close()

    # --- called by the threads of the connections ---

    def _accept(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        """A Spark task comes with a split: tell it how far that is."""
        number = int(hello["split"])
        with self._lock:
            split = self._splits.setdefault(number, _Split())
            before, split.sender = split.sender, connection
            rows = None if split.total_rows is not None else split.accepted_rows
            credit = SPLIT_BATCHES_MAX - len(split.waiting)
            connection.send(bytes([POSITION]) + message({"rows": rows, "credit": credit}))
        if before is not None:
            _turn_away(before, f"split {number}: another task feeds it now")
        return Handlers(
            on_frame=lambda frame: self._take(number, connection, frame),
            on_close=lambda reason: self._left(number, connection),
        )

    def _take(self, number: int, sender: Connection, frame: pa.Buffer) -> None:
        with self._lock:
            split = self._splits[number]
            if split.sender is not sender:
                return  # it has been told
            if frame[0] == END:
                rows = opened(frame)["rows"]
                if rows != split.accepted_rows:
                    raise ProtocolViolation(f"split {number}: ends at {rows}, but has {split.accepted_rows} rows")
                split.total_rows = rows
                sender.send(bytes([TAKEN]))
                return
            if len(split.waiting) >= SPLIT_BATCHES_MAX:
                raise ProtocolViolation(f"split {number}: more than {SPLIT_BATCHES_MAX} batches were sent")
            batch = self._codec.decode(frame)
            if not isinstance(batch, pa.RecordBatch):
                raise ProtocolViolation(f"split {number}: {batch!r} is no batch")
            if not split.waiting:
                self._turns.append(number)
            split.waiting.append(batch)
            split.accepted_rows += batch.num_rows

    def _left(self, number: int, sender: Connection) -> None:
        with self._lock:
            if self._splits[number].sender is sender:
                self._splits[number].sender = None

    def _hear(self, frame: pa.Buffer) -> None:
        news = opened(frame)
        self.failure = news.get("failed")
        self.complete = bool(news.get("complete"))

    def _hub_lost(self, reason: str | None) -> None:
        if not self._closed and not self.complete and self.failure is None:
            self.failure = f"the driver is gone ({reason or 'it said goodbye'})"


def _restored(rows: int | None) -> _Split:
    if rows is None:
        return _Split(total_rows=0)
    return _Split(accepted_rows=rows, handed_rows=rows)


def _turn_away(sender: Connection, why: str) -> None:
    sender.send(bytes([TURNED_AWAY]) + message({"why": why}))
    sender.leave()
