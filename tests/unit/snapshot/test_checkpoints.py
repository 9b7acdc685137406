"""Which checkpoints count: fencing by where later attempts started from.

Ends with two random drivers on one directory, each stopped and resumed between any
two of its storage calls.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from weir.ids import AttemptId, CheckpointId
from weir.snapshot.checkpoints import AttemptStart, Listing, PublishedCheckpoint

SEEDS = 2_000


def listing(
    published: list[tuple[int, int]],
    starts: list[tuple[int, int | None]],
    claimed: tuple[int, ...] = (),
    directories: tuple[int, ...] = (),
) -> Listing:
    """`published` holds (checkpoint, attempt), `starts` (attempt, restored checkpoint)."""
    return Listing(
        tuple(CheckpointId(n) for n in directories),
        tuple(PublishedCheckpoint(CheckpointId(n), AttemptId(a)) for n, a in published),
        tuple(AttemptId(a) for a in claimed),
        tuple(AttemptStart(AttemptId(a), None if r is None else CheckpointId(r)) for a, r in starts),
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
    assert found.is_fenced(AttemptId(1))
    assert not found.is_fenced(AttemptId(2))


def test_the_next_ids_are_above_everything_that_left_a_trace() -> None:
    assert (listing([], []).next_attempt, listing([], []).next_checkpoint) == (1, 1)
    assert listing([(4, 2)], [], claimed=(1, 2, 5)).next_attempt == 6
    assert listing([(4, 7)], [], claimed=(1,)).next_attempt == 8
    assert listing([], [(9, None)], claimed=(1,)).next_attempt == 10
    assert listing([(4, 1)], [], directories=(4, 11, 2)).next_checkpoint == 12
    assert listing([(13, 1)], [], directories=(4,)).next_checkpoint == 14
    assert listing([], [(2, 20)]).next_checkpoint == 21


def test_a_start_that_names_the_writer_tells_two_manifests_with_one_id_apart() -> None:
    """Attempt 4 restored attempt 2's; attempt 3 was stuck and wrote its own much later."""
    published = tuple(PublishedCheckpoint(CheckpointId(n), AttemptId(a)) for n, a in ((1, 1), (2, 2), (2, 3)))
    starts = tuple(AttemptStart(AttemptId(a), CheckpointId(n)) for a, n in ((2, 1), (3, 1)))
    found = Listing((), published, (), (*starts, AttemptStart(AttemptId(4), CheckpointId(2), AttemptId(2))))
    assert found.newest_published == PublishedCheckpoint(CheckpointId(2), AttemptId(2))


# --- Two drivers --------------------------------------------------------------------------------------


class Directory:
    """What is durable, and what sinks were told to commit: each commit with the line of checkpoints behind it."""

    def __init__(self, by_attempt: bool) -> None:
        self.by_attempt = by_attempt
        """Whether the names of manifests carry the attempt; otherwise the first with an id wins."""
        self.published: list[PublishedCheckpoint] = []
        self.parents: dict[PublishedCheckpoint, PublishedCheckpoint | None] = {}
        self.starts: list[AttemptStart] = []
        self.claimed: list[AttemptId] = []
        self.committed: list[PublishedCheckpoint] = []

    def look(self) -> Listing:
        directories = tuple(p.checkpoint for p in self.published)
        return Listing(directories, tuple(self.published), tuple(self.claimed), tuple(self.starts))

    def publish(self, entry: PublishedCheckpoint, parent: PublishedCheckpoint | None) -> bool:
        if not self.by_attempt and any(p.checkpoint == entry.checkpoint for p in self.published):
            return False
        self.parents[entry] = parent
        self.published.append(entry)
        return True

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
    last = seen.newest_published
    yield
    directory.starts.append(AttemptStart(attempt, seen.newest, last.attempt if last and directory.by_attempt else None))
    yield
    if directory.look().is_fenced(attempt):
        return
    yield
    if last is not None:
        directory.committed.append(last)
    for offset in range(checkpoints):
        yield
        entry = PublishedCheckpoint(CheckpointId(seen.next_checkpoint + offset), attempt)
        if not directory.publish(entry, last):
            continue
        last = entry
        yield
        if directory.look().is_fenced(attempt):
            return
        yield
        directory.committed.append(last)


@pytest.mark.parametrize("by_attempt", [True, False], ids=["named by attempt", "first wins"])
def test_several_drivers_on_one_directory_commit_one_history(by_attempt: bool) -> None:
    """Every commit that any driver brought about lies on the line of the checkpoint that counts in the end."""
    commits = 0
    for seed in range(SEEDS):
        dice = random.Random(seed)
        directory = Directory(by_attempt)
        drivers: list[Iterator[None]] = []
        for _ in range(dice.randint(5, 60)):
            if not drivers or (len(drivers) < 4 and dice.random() < 0.1):
                drivers.append(driver(directory, dice.randint(0, 4)))
            running = dice.choice(drivers)
            if next(running, "ended") == "ended" or dice.random() < 0.03:
                drivers.remove(running)
        line = directory.line_of(directory.look().newest_published)
        assert set(directory.committed) <= line, f"seed {seed}"
        commits += len(directory.committed)
    assert commits > SEEDS
