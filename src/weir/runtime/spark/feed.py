"""Rows that an ordinary Spark job pushes into the readers of a running Weir job.

    driver      FeedHub    knows where the newest attempt's readers listen; runs the Spark job for each attempt
    Weir task   FeedInbox  takes batches in, a bounded number for each split, and hands them out
    Spark task  push       one partition (split): asks how far its reader is, skips that, sends the rest

Comes in: a DataFrame, and readers that register. Goes out: its rows, each once, in the order of their partition.
Never looks into a row. The rows of a partition must be the same, in the same order, whenever it is computed.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from weir.errors import TaskLost, Unavailable
from weir.ids import AttemptId
from weir.runtime.net.connection import LEAVE_TIMEOUT_S, Connection, Frame
from weir.runtime.net.feed_inbox import END, POSITION, TAKEN, TURNED_AWAY, FeedAddress, message, opened
from weir.runtime.net.flight import CONNECT_TIMEOUT_S, FrameServer, Handlers, Refused, connect
from weir.runtime.net.lines import Lines, Role, RunLines
from weir.runtime.net.requests import HELLO, Answers, Head, Requester
from weir.runtime.net.wire_format import CREDIT, ElementCodec, decode_credit
from weir.runtime.spark.session import classic_context
from weir.runtime.spark.stage import BatchFunction, cancel_jobs, label_jobs, map_in_arrow, root_cause, shipped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ATTEMPT_PROPERTY = "weir.feed.attempt"
"""The local property by which a Spark task learns for which attempt it runs."""

_NEWS = 64
"""The kind of the frames that the hub sends to readers."""


# --- The driver ---------------------------------------------------------------------------------------


class FeedHub:
    """Feeds the readers of each attempt, as soon as all `parallelism` of them have registered.

    The same DataFrame object runs every time: Spark then keeps its partitions as they are.
    """

    def __init__(
        self, frame: DataFrame, schema: pa.Schema, *, host: str, lines: RunLines, parallelism: int, description: str
    ) -> None:
        self._session = frame.sparkSession
        self._parallelism = parallelism
        self._description = description
        self._name = f"weir-feed-{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._attempt: AttemptId | None = None
        self._readers: dict[int, tuple[str, Connection]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._answers = Answers(self._answer, lines.driver)
        self._server = FrameServer(host, lines.driver, self._register)
        self.address = FeedAddress(self._server.address, lines.tasks)
        self.frame = map_in_arrow(
            frame, shipped(feed_function(self.address, schema), what=self._description), "split long"
        )

    def close(self) -> None:
        """Stop feeding and listening."""
        with self._lock:
            self._closed = True
            attempt, thread = self._attempt, self._thread
        if attempt is not None:
            self._cancel(attempt)
        self._server.close()
        if thread is not None:
            thread.join(LEAVE_TIMEOUT_S)

    def _register(self, hello: Mapping[str, Any], connection: Connection) -> Handlers:
        if HELLO in hello:
            return self._answers.serve(connection)
        attempt, index = AttemptId(hello["attempt"]), int(hello["index"])
        with self._lock:
            if self._closed or (self._attempt is not None and attempt < self._attempt):
                raise Refused(f"attempt {attempt} is over")
            old = self._attempt
            if old is None or attempt > old:
                self._attempt, self._readers = attempt, {}
            self._readers[index] = (str(hello["address"]), connection)
            ready = len(self._readers) == self._parallelism
        if old is not None and attempt > old:
            self._cancel(old)
        if ready:
            self._thread = threading.Thread(target=self._feed, args=(attempt,), name=self._name, daemon=True)
            self._thread.start()
        return Handlers(on_frame=lambda frame: None, on_close=lambda reason: None)

    def _answer(self, asked: dict[str, Any], data: pa.Buffer) -> tuple[Head, Frame]:
        """Where the reader of a split listens; an old attempt's task is turned away."""
        with self._lock:
            if self._closed or asked["attempt"] not in (None, self._attempt):
                return {"over": f"attempt {asked['attempt']} is over"}, b""
            address, _ = self._readers[asked["split"] % self._parallelism]
        return {"address": address}, b""

    def _feed(self, attempt: AttemptId) -> None:
        try:
            label_jobs(self._session, self._group(attempt), self._description)
            if (context := classic_context(self._session)) is not None:
                context.setLocalProperty(_ATTEMPT_PROPERTY, str(attempt))
            self.frame.collect()
            news: dict[str, Any] = {"complete": True}
        except BaseException as error:
            news = {"failed": root_cause(str(error))}
        with self._lock:
            readers = list(self._readers.values()) if attempt == self._attempt else []
        for _, connection in readers:
            connection.send(bytes([_NEWS]) + message(news))

    def _cancel(self, attempt: AttemptId) -> None:
        with suppress(Exception):  # a session that is gone runs no job either
            cancel_jobs(self._session, self._group(attempt))

    def _group(self, attempt: AttemptId) -> str:
        return f"{self._name}-{attempt}"


# --- The Spark tasks ------------------------------------------------------------------------------------


def feed_function(feed: FeedAddress, schema: pa.Schema) -> BatchFunction:
    """What runs on each partition of the DataFrame."""

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = context.getLocalProperty(_ATTEMPT_PROPERTY)
        push(feed, context.partitionId(), batches, schema, attempt=AttemptId(int(attempt)) if attempt else None)
        return iter(())

    return run


def push(
    feed: FeedAddress,
    split: int,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    attempt: AttemptId | None = None,
) -> None:
    """Send the rows of one split to its reader, from where the reader is; a finished split is not even computed."""
    hub = Requester(feed.address, feed.lines)
    try:
        found, _ = hub.ask({"split": split, "attempt": attempt}, timeout_s=CONNECT_TIMEOUT_S)
    finally:
        hub.close()
    if "address" not in found:
        raise TaskLost(f"split {split}: {found.get('over') or found}")
    sender = _Sender(found["address"], feed.lines, split)
    try:
        taken_rows = sender.begin()
        if taken_rows is not None:
            sender.end(_push_rows(sender, batches, schema, taken_rows))
    finally:
        sender.close()


class _Sender:
    """One split's line to its reader. A batch waits until the reader has room for it."""

    def __init__(self, address: str, lines: Lines, split: int) -> None:
        self._where = f"split {split}: its reader at {address}"
        self._changed = threading.Condition()
        self._position: Mapping[str, Any] | None = None
        self._credit = 0
        self._is_done = False
        self._over: str | None = None
        self._connection = connect(
            address, lines, {"split": split}, to=Role.TASK, on_frame=self._take, on_close=self._ended
        )

    def begin(self) -> int | None:
        """How many rows the reader has; None: all of them."""
        self._wait(lambda: self._position is not None)
        return None if self._position is None else self._position["rows"]

    def send(self, frame: Frame) -> None:
        self._wait(lambda: self._credit > 0)
        with self._changed:
            self._credit -= 1
        self._connection.send(frame)

    def end(self, rows: int) -> None:
        """All is sent; wait until all has been taken in."""
        self._connection.send(bytes([END]) + message({"rows": rows}))
        self._wait(lambda: self._is_done)

    def close(self) -> None:
        self._connection.close()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None or condition())
            if self._over is not None and not condition():
                raise TaskLost(f"{self._where} does not take rows: {self._over}")

    def _take(self, frame: pa.Buffer) -> None:
        with self._changed:
            if frame[0] == POSITION:
                self._position = opened(frame)
                self._credit = self._position["credit"]
            elif frame[0] == CREDIT:
                self._credit += decode_credit(frame)
            elif frame[0] == TAKEN:
                self._is_done = True
            elif frame[0] == TURNED_AWAY:
                self._over = opened(frame)["why"]
            self._changed.notify_all()

    def _ended(self, reason: str | None) -> None:
        with self._changed:
            self._over = self._over or reason or "it has closed"
            self._changed.notify_all()


def _push_rows(sender: _Sender, batches: Iterable[pa.RecordBatch], schema: pa.Schema, skip_rows: int) -> int:
    codec, row = ElementCodec(schema), 0
    for batch in batches:
        start, row = row, row + batch.num_rows
        if row > skip_rows:
            sender.send(codec.encode(_fitted(batch.slice(max(0, skip_rows - start)), schema), 0))
    if row < skip_rows:
        raise Unavailable(f"the partition has {row} rows now; {skip_rows} were taken before: it is not the same data")
    return row


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark's batch with the declared names and types: time zones and large types may differ, values do not."""
    columns = [
        column if column.type == wanted.type else column.cast(wanted.type)
        for column, wanted in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
