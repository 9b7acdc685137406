"""A reader's end of the feed: batches of a Spark job come in, wait a little, and are handed out.

Comes in: DoPut streams, one for each split, from Spark tasks (feed.py). Goes out: batches, and how many rows of
each split were handed out. Never holds more than a few batches of a split: its sender pauses beyond that.
"""

from __future__ import annotations

import hmac
import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from weir.ids import AttemptId
from weir.runtime.connection import LEAVE_TIMEOUT_S
from weir.runtime.lines import Lines, Secret
from weir.runtime.wire import connect, cut_sockets

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


def message(value: Mapping[str, Any]) -> pa.Buffer:
    return pa.py_buffer(json.dumps(value).encode())


@dataclass
class _Split:
    """One partition, as its reader sees it."""

    accepted_rows: int = 0
    handed_rows: int = 0
    total_rows: int | None = None
    caller: int = 0
    """Counts the Spark tasks that came for it; only the newest is listened to."""
    waiting: deque[pa.RecordBatch] = field(default_factory=deque)

    @property
    def done(self) -> bool:
        return self.total_rows == self.handed_rows


class FeedInbox:
    """One reader's end: takes batches from Spark tasks, at most SPLIT_BATCHES_MAX for each split."""

    def __init__(
        self, feed: FeedAddress, *, host: str, index: int, attempt: AttemptId, taken: Mapping[int, int | None]
    ) -> None:
        """`taken`: rows that were handed out of each split before; None for a split that is done."""
        self.complete = False
        """Spark has delivered every split."""
        self.failure: str | None = None
        self._changed = threading.Condition(threading.Lock())
        self._splits = {split: _restored(rows) for split, rows in taken.items()}
        self._turns: deque[int] = deque()
        self._closed = False
        place = f"grpc://[{host}]" if ":" in host else f"grpc://{host}"
        self._server = _InboxServer(f"{place}:0", feed.lines.token, self)
        self._hub = connect(
            feed.address,
            feed.lines,
            {"attempt": attempt, "index": index, "address": f"{place}:{self._server.port}"},
            on_frame=self._hear,
            on_close=self._hub_lost,
        )

    def take(self, rows_max: int) -> pa.RecordBatch | None:
        """The next rows of some split; several waiting batches of it become one."""
        with self._changed:
            if not self._turns:
                return None
            number = self._turns.popleft()
            split = self._splits[number]
            batches, rows = [], 0
            while split.waiting and rows < rows_max:
                batch = split.waiting.popleft()
                if rows + batch.num_rows > rows_max:
                    split.waiting.appendleft(batch.slice(rows_max - rows))
                    batch = batch.slice(0, rows_max - rows)
                batches.append(batch)
                rows += batch.num_rows
            if split.waiting:
                self._turns.append(number)
            split.handed_rows += rows
            self._changed.notify_all()
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    @property
    def empty(self) -> bool:
        return not self._turns

    def taken(self) -> dict[int, int | None]:
        """Rows handed out of each split; None once it is done."""
        with self._changed:
            return {number: None if split.done else split.handed_rows for number, split in self._splits.items()}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._hub.close()
        stopping = threading.Thread(target=self._server.shutdown, daemon=True)
        stopping.start()
        stopping.join(LEAVE_TIMEOUT_S)
        if stopping.is_alive():  # a Spark task that neither sends nor leaves
            cut_sockets(local_port=self._server.port)
            stopping.join(LEAVE_TIMEOUT_S)

    # --- called by the threads of the server ---

    def begin(self, number: int) -> tuple[int, int | None]:
        """A Spark task comes with a split: its ticket, and how many rows it may skip (None: all)."""
        with self._changed:
            split = self._splits.setdefault(number, _Split())
            split.caller += 1
            self._changed.notify_all()
            return split.caller, None if split.total_rows is not None else split.accepted_rows

    def accept(self, number: int, caller: int, start: int, batch: pa.RecordBatch) -> None:
        """Take a batch in, once there is room."""
        with self._changed:
            split = self._splits[number]
            while len(split.waiting) >= SPLIT_BATCHES_MAX and split.caller == caller and not self._closed:
                self._changed.wait()
            self._check(number, split, caller)
            if start != split.accepted_rows:
                raise flight.FlightServerError(f"split {number}: row {start} came where {split.accepted_rows} was due")
            if batch.num_rows:
                if not split.waiting:
                    self._turns.append(number)
                split.waiting.append(batch)
                split.accepted_rows += batch.num_rows

    def end(self, number: int, caller: int, rows: int) -> None:
        with self._changed:
            split = self._splits[number]
            self._check(number, split, caller)
            if rows != split.accepted_rows:
                raise flight.FlightServerError(f"split {number}: ends at {rows}, but has {split.accepted_rows} rows")
            split.total_rows = rows

    def _check(self, number: int, split: _Split, caller: int) -> None:
        if self._closed or split.caller != caller:
            raise flight.FlightCancelledError(f"split {number}: another task feeds it now, or the reader has closed")

    def _hear(self, frame: pa.Buffer) -> None:
        news = json.loads(frame.slice(1).to_pybytes())
        self.failure = news.get("failed")
        self.complete = bool(news.get("complete"))

    def _hub_lost(self, reason: str | None) -> None:
        if not self._closed and not self.complete and self.failure is None:
            self.failure = f"the driver is gone ({reason or 'it said goodbye'})"


def _restored(rows: int | None) -> _Split:
    if rows is None:
        return _Split(total_rows=0)
    return _Split(accepted_rows=rows, handed_rows=rows)


class _InboxServer(flight.FlightServerBase):  # type: ignore[misc]
    """Takes DoPut streams: a greeting with the position, batches with their first row, an end with the row count."""

    def __init__(self, location: str, token: Secret, inbox: FeedInbox) -> None:
        self._token = token
        self._inbox = inbox
        super().__init__(location)

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        hello = json.loads(descriptor.command)
        if not hmac.compare_digest(str(hello.get("token")).encode(), self._token.reveal().encode()):
            raise flight.FlightUnauthenticatedError("this call does not carry the token of the job")
        split = int(hello["split"])
        caller, taken = self._inbox.begin(split)
        writer.write(message({"rows": taken}))
        for chunk in reader:
            said = json.loads(chunk.app_metadata.to_pybytes())
            if "end" in said:
                self._inbox.end(split, caller, said["end"])
                writer.write(message({"ended": True}))
            else:
                self._inbox.accept(split, caller, said["start"], chunk.data)
