"""Rows that an ordinary Spark job pushes into the readers of a running Weir job.

    driver      FeedHub    knows where the newest attempt's readers listen; runs the Spark job for each attempt
    Weir task   FeedInbox  takes batches in, a bounded number for each split, and hands them out
    Spark task  push       one partition (split): asks how far its reader is, skips that, sends the rest

Comes in: a DataFrame, and readers that register. Goes out: its rows, each once, in the order of their partition.
Never looks into a row. The rows of a partition must be the same, in the same order, whenever it is computed.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from weir.errors import TaskLost, Unavailable
from weir.ids import AttemptId
from weir.runtime.connection import LEAVE_TIMEOUT_S, Connection, describe
from weir.runtime.feed_inbox import FeedAddress, message
from weir.runtime.lines import Lines
from weir.runtime.spark import classic_context
from weir.runtime.stage import BatchFunction, cancel_jobs, label_jobs, map_in_arrow, root_cause, shipped
from weir.runtime.wire import FrameServer, Handlers, Refused, call_options, client_of

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
        self, frame: DataFrame, schema: pa.Schema, *, host: str, lines: Lines, parallelism: int, description: str
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
        self._server = FrameServer(host, lines, self._register, on_action=self._answer)
        self.address = FeedAddress(self._server.address, lines)
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

    def _answer(self, name: str, body: pa.Buffer) -> pa.Buffer:
        """Where the reader of a split listens; an old attempt's task is turned away."""
        asked = json.loads(body.to_pybytes())
        with self._lock:
            if self._closed or asked["attempt"] not in (None, self._attempt):
                raise flight.FlightCancelledError(f"attempt {asked['attempt']} is over")
            address, _ = self._readers[asked["split"] % self._parallelism]
        return pa.py_buffer(address.encode())

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
            connection.send(bytes([_NEWS]) + json.dumps(news).encode())

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
    with client_of(feed.address) as hub:
        action = flight.Action("where", json.dumps({"split": split, "attempt": attempt}).encode())
        address = next(iter(hub.do_action(action, call_options(feed.lines.token)))).body.to_pybytes().decode()
    with client_of(address) as client:
        hello = flight.FlightDescriptor.for_command(
            json.dumps({"split": split, "token": feed.lines.token.reveal()}).encode()
        )
        writer, replies = client.do_put(hello, schema)
        try:
            taken = json.loads(_reply(replies))["rows"]
            if taken is not None:
                _push_rows(writer, batches, schema, taken)
                writer.done_writing()
                _reply(replies)
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            why = _closed(writer) or describe(error)
            raise TaskLost(f"split {split}: its reader at {address} does not take rows: {why}") from None
        finally:
            _closed(writer)


def _push_rows(writer: Any, batches: Iterable[pa.RecordBatch], schema: pa.Schema, skip_rows: int) -> None:
    row = 0
    for batch in batches:
        start, row = row, row + batch.num_rows
        if row <= skip_rows:
            continue
        fresh = batch.slice(max(0, skip_rows - start))
        writer.write_with_metadata(_fitted(fresh, schema), message({"start": row - fresh.num_rows}))
    if row < skip_rows:
        raise Unavailable(f"the partition has {row} rows now; {skip_rows} were taken before: it is not the same data")
    writer.write_metadata(message({"end": row}))


def _fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark's batch with the declared names and types: time zones and large types may differ, values do not."""
    columns = [
        column if column.type == wanted.type else column.cast(wanted.type)
        for column, wanted in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _closed(writer: Any) -> str | None:
    """Close a stream; the server's own reason, if that is why it ended."""
    try:
        writer.close()
    except Exception as error:
        return describe(error)
    return None


def _reply(replies: Any) -> bytes:
    found = replies.read()
    if found is None:
        raise OSError("the reader went away")
    return bytes(found.to_pybytes())
