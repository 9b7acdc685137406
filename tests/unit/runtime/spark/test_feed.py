"""The feed without Spark: a stand-in for the DataFrame pushes its partitions from threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import poll
from weir.config import Settings
from weir.errors import TaskLost, Unavailable
from weir.ids import AttemptId
from weir.runtime.net.feed_inbox import SPLIT_BATCHES_MAX, FeedAddress, FeedInbox
from weir.runtime.net.lines import Lines, RunLines, Secret
from weir.runtime.spark.feed import FeedHub, push

SCHEMA = pa.schema([("split", pa.int64()), ("row", pa.int64())])
HOST = "127.0.0.1"


def batches_of(split: int, rows: int, batch_rows: int = 10) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, batch_rows):
        numbers = list(range(start, min(rows, start + batch_rows)))
        yield pa.RecordBatch.from_arrays([pa.array([split] * len(numbers)), pa.array(numbers)], schema=SCHEMA)


class Frame:
    """What FeedHub uses of a DataFrame; `run` stands for the Spark job."""

    sparkSession: Any = type(
        "Session", (), {"addTag": lambda self, tag: None, "interruptTag": lambda self, tag: None}
    )()

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run

    def mapInArrow(self, function: Any, schema: str, barrier: bool) -> Frame:
        return self

    def collect(self) -> None:
        self.run()


class Feed:
    """A hub, and readers of its attempts."""

    def __init__(self, parallelism: int, schema: pa.Schema = SCHEMA, *, tls: bool = False) -> None:
        self.schema = schema
        self.run: Callable[[], None] = lambda: None
        self.parallelism = parallelism
        frame: Any = Frame(lambda: self.run())
        self.hub = FeedHub(
            frame,
            SCHEMA,
            host=HOST,
            lines=RunLines.new(Settings(tls=tls), HOST),
            parallelism=parallelism,
            description="test",
        )
        self.inboxes: list[FeedInbox] = []

    @property
    def address(self) -> FeedAddress:
        return self.hub.address

    def attempt(self, number: int, taken: dict[int, int | None] | None = None) -> list[FeedInbox]:
        opened = [
            FeedInbox(
                self.address,
                self.schema,
                host=HOST,
                index=index,
                attempt=AttemptId(number),
                taken={s: rows for s, rows in (taken or {}).items() if s % self.parallelism == index},
            )
            for index in range(self.parallelism)
        ]
        self.inboxes += opened
        return opened

    def push(self, split: int, rows: int, **more: Any) -> None:
        push(self.address, split, batches_of(split, rows), SCHEMA, **more)


@pytest.fixture
def feed() -> Iterator[Callable[..., Feed]]:
    made: list[Feed] = []

    def make(parallelism: int, schema: pa.Schema = SCHEMA, **options: Any) -> Feed:
        made.append(Feed(parallelism, schema, **options))
        return made[-1]

    yield make
    for each in made:
        for inbox in each.inboxes:
            inbox.close()
        each.hub.close()


def drain(inbox: FeedInbox, rows_max: int = 1_000) -> list[tuple[int, int]]:
    rows: list[tuple[int, int]] = []
    while (batch := inbox.take(rows_max)) is not None:
        assert 0 < batch.num_rows <= rows_max
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


@pytest.mark.parametrize("tls", [False, True])
def test_every_row_of_every_split_arrives_once_in_order_at_the_reader_that_owns_it(
    feed: Callable[..., Feed], tls: bool
) -> None:
    fed = feed(2, tls=tls)
    fed.run = lambda: [fed.push(split, 25 + split) for split in range(5)] and None
    left, right = fed.attempt(1)
    poll(lambda: left.complete and right.complete)
    for inbox, splits in ((left, (0, 2, 4)), (right, (1, 3))):
        rows = drain(inbox, rows_max=7)
        for split in splits:
            assert [row for s, row in rows if s == split] == list(range(25 + split))
        assert len(rows) == sum(25 + split for split in splits)
        assert inbox.taken() == dict.fromkeys(splits)


def test_an_empty_split_is_done_too(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    fed.run = lambda: fed.push(0, 0)
    (inbox,) = fed.attempt(1)
    poll(lambda: inbox.complete)
    assert inbox.empty and inbox.taken() == {0: None}


def test_a_sender_that_comes_again_skips_what_the_reader_has(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    (inbox,) = fed.attempt(1)

    def half() -> Iterator[pa.RecordBatch]:
        yield from batches_of(0, 15)
        raise RuntimeError("the Spark task died")

    with pytest.raises(RuntimeError):
        push(fed.address, 0, half(), SCHEMA)
    poll(lambda: inbox._splits[0].accepted_rows == 15)
    before = drain(inbox, rows_max=4)
    fed.push(0, 40)
    assert before + drain(inbox) == [(0, row) for row in range(40)]


def test_a_restored_reader_gets_the_rest_and_a_done_split_is_not_computed(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    (inbox,) = fed.attempt(3, taken={0: None, 1: 12})

    def never() -> Iterator[pa.RecordBatch]:
        raise AssertionError("computed a split that is done")
        yield

    push(fed.address, 0, never(), SCHEMA)
    fed.push(1, 30)
    assert inbox.taken() == {0: None, 1: 12}
    assert drain(inbox) == [(1, row) for row in range(12, 30)]
    assert inbox.taken() == {0: None, 1: None}


def test_a_split_that_has_become_shorter_is_refused(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    fed.attempt(1, taken={0: 12})
    with pytest.raises(Unavailable, match="has 7 rows now; 12 were taken before"):
        fed.push(0, 7)


def test_a_sender_pauses_while_its_reader_takes_nothing(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    (inbox,) = fed.attempt(1)
    pushing = threading.Thread(target=fed.push, args=(0, 1_000))
    pushing.start()
    poll(lambda: len(inbox._splits) == 1 and len(inbox._splits[0].waiting) == SPLIT_BATCHES_MAX)
    pushing.join(0.2)
    assert pushing.is_alive() and len(inbox._splits[0].waiting) == SPLIT_BATCHES_MAX
    rows: list[tuple[int, int]] = []
    poll(lambda: rows.extend(drain(inbox)) or not pushing.is_alive())
    assert rows + drain(inbox) == [(0, row) for row in range(1_000)]


def test_closing_a_reader_frees_its_senders(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    (inbox,) = fed.attempt(1)
    errors: list[BaseException] = []

    def send() -> None:
        try:
            fed.push(0, 10_000)
        except BaseException as error:
            errors.append(error)

    pushing = threading.Thread(target=send)
    pushing.start()
    poll(lambda: not inbox.empty)
    inbox.close()
    pushing.join(10)
    assert not pushing.is_alive() and isinstance(errors[0], TaskLost)


def test_of_two_senders_of_a_split_only_the_newest_is_heard(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    (inbox,) = fed.attempt(1)
    second_may_go, second_is_done = threading.Event(), threading.Event()

    def slow() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches_of(0, 40)):
            if number == 2:
                second_may_go.set()
                assert second_is_done.wait(10)
            yield batch

    def second() -> None:
        assert second_may_go.wait(10)
        fed.push(0, 40)
        second_is_done.set()

    other = threading.Thread(target=second)
    other.start()
    with pytest.raises(TaskLost, match="another task feeds it now"):
        push(fed.address, 0, slow(), SCHEMA)
    other.join(10)
    assert drain(inbox) == [(0, row) for row in range(40)]


def test_an_old_attempt_neither_registers_nor_sends(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    (inbox,) = fed.attempt(5)
    with pytest.raises(TaskLost, match="attempt 4 is over"):
        fed.attempt(4)
    with pytest.raises(Exception, match="attempt 4 is over"):
        fed.push(0, 10, attempt=AttemptId(4))
    fed.push(0, 10, attempt=AttemptId(5))
    assert len(drain(inbox)) == 10


def test_each_attempt_is_fed_anew(feed: Callable[..., Feed]) -> None:
    fed = feed(2)
    fed.run = lambda: [fed.push(split, 10) for split in range(2)] and None
    first = fed.attempt(1)
    poll(lambda: all(inbox.complete for inbox in first))
    second = fed.attempt(2, taken={0: 4})
    poll(lambda: all(inbox.complete for inbox in second))
    assert [row for inbox in second for row in drain(inbox)] == [(0, r) for r in range(4, 10)] + [
        (1, r) for r in range(10)
    ]


def test_readers_hear_why_the_spark_job_failed(feed: Callable[..., Feed]) -> None:
    fed = feed(1)

    def fail() -> None:
        raise RuntimeError("file not found: a.parquet\n\tat org.apache.spark…")

    fed.run = fail
    (inbox,) = fed.attempt(1)
    poll(lambda: inbox.failure is not None)
    assert inbox.failure == "file not found: a.parquet" and not inbox.complete


def test_readers_notice_when_the_driver_goes(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    over = threading.Event()
    fed.run = lambda: over.wait(10) and None
    (inbox,) = fed.attempt(1)
    fed.hub._server.close()
    poll(lambda: inbox.failure is not None)
    over.set()
    assert "the driver is gone" in str(inbox.failure)


def test_a_sender_without_the_token_is_turned_away(feed: Callable[..., Feed]) -> None:
    fed = feed(1)
    (inbox,) = fed.attempt(1)
    with pytest.raises(Exception, match="token"):
        push(FeedAddress(fed.address.address, Lines(Secret("guess"))), 0, batches_of(0, 10), SCHEMA)
    assert inbox.empty


def test_types_that_spark_spells_differently_become_the_declared_ones(feed: Callable[..., Feed]) -> None:
    declared = pa.schema([("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
    fed = feed(1, declared)
    (inbox,) = fed.attempt(1)
    spelled = pa.schema([("c0", pa.timestamp("us", "Europe/Berlin")), ("c1", pa.large_string())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([5], spelled.field(0).type), pa.array(["x"], pa.large_string())], schema=spelled
    )
    push(fed.address, 0, [batch], declared)
    taken = inbox.take(10)
    assert taken is not None and taken.schema == declared
    assert taken.column(0).cast(pa.int64()).to_pylist() == [5]
