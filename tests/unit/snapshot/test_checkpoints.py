"""Which checkpoints count: fencing by where later attempts started from.

Ends with two random drivers on one directory, each stopped and resumed between any
two of its storage calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from weir.ids import AttemptId, CheckpointId
from weir.snapshot.checkpoints import AttemptStart, Listing, PublishedCheckpoint, overtaken_by

SEEDS = 2_000


def listing(
    published: list[tuple[int, int]],
    starts: list[tuple[Any, ...]],
    *,
    claimed: tuple[int, ...] = (),
    traces: tuple[int, ...] = (),
    completed: list[tuple[int, int]] | None = None,
) -> Listing:
    """`published` and `completed` hold (checkpoint, attempt), `starts` (attempt, restored checkpoint, its writer)."""
    return Listing(
        tuple(CheckpointId(n) for n in traces),
        tuple(PublishedCheckpoint(CheckpointId(n), AttemptId(a)) for n, a in published),
        tuple(AttemptId(a) for a in claimed),
        tuple(AttemptStart(*start) for start in starts),
        tuple(PublishedCheckpoint(CheckpointId(n), AttemptId(a)) for n, a in completed or ()),
    )


@pytest.mark.parametrize(
    ("published", "starts", "valid"),
    [
        pytest.param([], [], (), id="nothing"),
        pytest.param([], [(1, None)], (), id="no checkpoint yet"),
        pytest.param([(2, 1), (1, 1)], [(1, None)], (1, 2), id="one attempt"),
        pytest.param([(1, 1), (2, 1), (3, 2)], [(1, None), (2, 2)], (1, 2, 3), id="two attempts"),
        pytest.param([(1, 1), (2, 1), (3, 1)], [(1, None), (2, 2)], (1, 2), id="a late manifest of the old attempt"),
        pytest.param([(1, 1)], [(1, None), (2, None)], (), id="a late manifest, the new attempt began from nothing"),
        pytest.param([(5, 1), (9, 1), (7, 2)], [(1, None), (2, 5)], (5, 7), id="a late manifest with the highest id"),
        pytest.param([(5, 1), (6, 2)], [(1, None), (2, 5), (3, 5)], (5,), id="an older one was chosen"),
        pytest.param([(7, 2), (8, 3)], [(1, None), (2, 5), (3, 7)], (7, 8), id="what was restored first is retired"),
        pytest.param([(4, 1), (5, 1)], [(1, None), (2, 6)], (4, 5), id="the restored one was deleted by hand"),
        pytest.param([(6, 1), (7, 1), (7, 2)], [(1, None), (2, 6)], (6, 7), id="the same id by two attempts"),
        pytest.param([(5, 1), (6, 1)], [(1, None), (2, 5), (3, 6)], (5, 6), id="a stuck attempt's start came late"),
        pytest.param([(5, 1), (6, 1), (7, 2)], [(1, None), (2, 5), (3, 6)], (5, 6), id="and it even published"),
    ],
)
def test_what_counts_is_the_line_of_descent_of_the_newest_attempt(
    published: list[tuple[int, int]], starts: list[tuple[int, int | None]], valid: tuple[int, ...]
) -> None:
    found = listing(published, starts)
    assert found.valid == valid
    assert found.newest == (valid[-1] if valid else None)


def test_of_two_manifests_with_one_id_the_fenced_one_is_void() -> None:
    found = listing([(6, 1), (7, 1), (7, 2)], [(1, None), (2, 6)])
    assert PublishedCheckpoint(CheckpointId(7), AttemptId(1)) not in found.valid_published
    assert PublishedCheckpoint(CheckpointId(7), AttemptId(2)) in found.valid_published


def test_a_claim_that_never_started_voids_nothing_and_fences_older_attempts() -> None:
    found = listing([(1, 1), (2, 1)], [(1, None)], claimed=(1, 2))
    assert found.valid == (1, 2)
    assert overtaken_by(found.claimed, AttemptId(1)) == 2
    assert overtaken_by(found.claimed, AttemptId(2)) is None
    assert overtaken_by((), AttemptId(2)) is None


def test_the_next_ids_are_above_everything_that_left_a_trace() -> None:
    assert (listing([], []).next_attempt, listing([], []).next_checkpoint()) == (1, 1)
    assert listing([(4, 2)], [], claimed=(1, 2, 5)).next_attempt == 6
    assert listing([(4, 7)], [], claimed=(1,)).next_attempt == 8
    assert listing([], [(9, None)], claimed=(1,)).next_attempt == 10
    assert listing([(4, 1)], [], traces=(4, 11, 2)).next_checkpoint() == 12
    assert listing([(13, 1)], [], traces=(4,)).next_checkpoint() == 14
    assert listing([], [(2, 20)]).next_checkpoint() == 21


def test_an_id_that_another_driver_may_give_out_is_never_given_out_again() -> None:
    """It has left no trace yet."""
    start = AttemptStart(AttemptId(1), None, None, CheckpointId(65))
    found = Listing((), (), (AttemptId(1),), (start,), (), (PublishedCheckpoint(CheckpointId(97), AttemptId(1)),))
    assert found.next_checkpoint() == 97
    assert found.next_checkpoint(frozenset({AttemptId(1)})) == 1, "what was given out of its own leases, it knows"


@pytest.mark.parametrize(
    ("published", "starts", "completed", "missing"),
    [
        pytest.param([], [], [], None, id="nothing"),
        pytest.param([(1, 1), (2, 1)], [(1, None)], [(2, 1)], None, id="all there"),
        pytest.param([(1, 1), (2, 1), (3, 1)], [(1, None)], [(2, 1)], None, id="published and not told yet"),
        pytest.param([(1, 1)], [(1, None)], [(2, 1)], 2, id="the newest is gone"),
        pytest.param([], [(1, None)], [(2, 1)], 2, id="all are gone"),
        pytest.param([(1, 1)], [(1, None), (2, 3)], [(1, 1)], 3, id="what was restored last is gone"),
        pytest.param([(5, 2)], [(1, None), (2, 2)], [(2, 1), (5, 2)], None, id="older ones are retired"),
        pytest.param([(1, 1), (9, 2)], [(1, None), (2, 9, 2)], [(4, 1)], None, id="it was gone back on purpose"),
        pytest.param([(1, 1)], [(1, None), (2, 9, 2)], [(4, 1)], 9, id="the copy that was gone back to is gone"),
    ],
)
def test_a_checkpoint_that_somebody_has_taken_away_is_missed(
    published: list[tuple[int, int]],
    starts: list[tuple[int, int | None]],
    completed: list[tuple[int, int]],
    missing: int | None,
) -> None:
    assert listing(published, starts, completed=completed).missing == missing


def test_going_back_ends_the_line_of_descent() -> None:
    found = listing([(3, 1), (4, 1), (80, 2), (81, 2)], [(1, None), (2, 80, 2), (3, 81)])
    assert found.valid == (80, 81)


def test_a_start_that_names_the_writer_tells_two_manifests_with_one_id_apart() -> None:
    """Attempt 4 restored attempt 2's; attempt 3 was stuck and wrote its own much later."""
    published = tuple(PublishedCheckpoint(CheckpointId(n), AttemptId(a)) for n, a in ((1, 1), (2, 2), (2, 3)))
    starts = tuple(AttemptStart(AttemptId(a), CheckpointId(n)) for a, n in ((2, 1), (3, 1)))
    found = Listing((), published, (), (*starts, AttemptStart(AttemptId(4), CheckpointId(2), AttemptId(2))))
    assert found.newest_published == PublishedCheckpoint(CheckpointId(2), AttemptId(2))


# --- Two drivers --------------------------------------------------------------------------------------

LEASED = 3


class Directory:
    """What is durable, and what sinks were told to commit: each commit with the line of checkpoints behind it."""

    def __init__(self) -> None:
        self.published: list[PublishedCheckpoint] = []
        self.parents: dict[PublishedCheckpoint, PublishedCheckpoint | None] = {}
        self.starts: list[AttemptStart] = []
        self.claimed: list[AttemptId] = []
        self.committed: list[PublishedCheckpoint] = []
        self.completed: list[PublishedCheckpoint] = []

    def look(self) -> Listing:
        traces = tuple(p.checkpoint for p in self.published)
        found = tuple(self.published), tuple(self.claimed), tuple(self.starts), tuple(self.completed)
        return Listing(traces, *found)

    def line_of(self, entry: PublishedCheckpoint | None) -> set[PublishedCheckpoint]:
        line = set()
        while entry is not None:
            line.add(entry)
            entry = self.parents[entry]
        return line


def driver(directory: Directory, checkpoints: int) -> Iterator[None]:
    """One attempt; each yield is a moment at which another driver, or nobody, may go on. Dropping it is a crash."""
    attempt = directory.look().next_attempt
    yield
    if attempt in directory.claimed:
        return
    directory.claimed.append(attempt)
    yield
    seen = directory.look()
    assert seen.missing is None
    last, first = seen.newest_published, seen.next_checkpoint()
    yield
    writer = None if last is None else last.attempt
    directory.starts.append(AttemptStart(attempt, seen.newest, writer, CheckpointId(first + LEASED)))
    yield
    if overtaken_by(directory.look().claimed, attempt):
        return
    yield
    if last is not None:
        directory.committed.append(last)
    for offset in range(min(checkpoints, LEASED)):
        yield
        entry = PublishedCheckpoint(CheckpointId(first + offset), attempt)
        directory.parents[entry] = last
        directory.published.append(entry)
        last = entry
        yield
        if overtaken_by(directory.look().claimed, attempt):
            return
        yield
        directory.completed.append(last)
        yield
        directory.committed.append(last)


def test_several_drivers_on_one_directory_commit_one_history_and_share_no_id() -> None:
    """Every commit that any driver brought about lies on the line of the checkpoint that counts in the end."""
    commits = 0
    for seed in range(SEEDS):
        dice = random.Random(seed)
        directory = Directory()
        drivers: list[Iterator[None]] = []
        for _ in range(dice.randint(5, 60)):
            if not drivers or (len(drivers) < 4 and dice.random() < 0.1):
                drivers.append(driver(directory, dice.randint(0, 4)))
            running = dice.choice(drivers)
            if next(running, "ended") == "ended" or dice.random() < 0.03:
                drivers.remove(running)
        line = directory.line_of(directory.look().newest_published)
        assert set(directory.committed) <= line, f"seed {seed}"
        ids = [entry.checkpoint for entry in directory.published]
        assert len(set(ids)) == len(ids), f"seed {seed}"
        commits += len(directory.committed)
    assert commits > SEEDS
