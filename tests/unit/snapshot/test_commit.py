"""The committer: what a sink subtask commits, when, how often, and what its snapshots carry.

Ends with random runs that crash at any point and restore from the last published manifest.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from weir.errors import ProtocolViolation
from weir.ids import CheckpointId
from weir.snapshot import commit
from weir.snapshot.backoff import Backoff
from weir.snapshot.commit import (
    AtRest,
    Commit,
    CommitEffect,
    CommitEvent,
    CommitFailed,
    CommitGrant,
    CommitSucceeded,
    Committer,
    Committing,
    Completed,
    EndAttempt,
    EpochPrepared,
    GaveUp,
    ReportCommitted,
    RestoredPending,
    RetryDue,
    Retrying,
)
from weir.snapshot.parts import Json


def prepared(checkpoint: int, committable: Json = "") -> EpochPrepared:
    return EpochPrepared(CheckpointId(checkpoint), f"e{checkpoint}" if committable == "" else committable)


def complete(checkpoint: int) -> Completed:
    return Completed(CheckpointId(checkpoint))


def restored(checkpoint: int, *committables: Json) -> RestoredPending:
    return RestoredPending(CheckpointId(checkpoint), list(committables))


def succeeded(checkpoint: int) -> CommitSucceeded:
    return CommitSucceeded(CheckpointId(checkpoint))


def failed(checkpoint: int, now_ms: float = 0.0) -> CommitFailed:
    return CommitFailed(CheckpointId(checkpoint), "connection reset", now_ms, chance=1.0)


def committer(retries_max: int) -> Committer:
    """Waits 100, 200, 400, 500, 500 … milliseconds."""
    return Committer(retries_max, Backoff(initial_ms=100, maximum_ms=500))


LATER = RetryDue(1e9)
"""Every delay is over."""


def reported(checkpoint: int) -> ReportCommitted:
    return ReportCommitted(CheckpointId(checkpoint))


def run(committer: Committer, *events: CommitEvent) -> list[CommitEffect]:
    """The effects of the last event."""
    effects: list[CommitEffect] = []
    for event in events:
        effects = committer.handle(event)
    return effects


def check_commit(effects: list[CommitEffect], checkpoint: int, *committables: Json) -> None:
    """The only effect is this commit."""
    [effect] = effects
    assert isinstance(effect, Commit)
    assert (effect.grant.checkpoint, effect.committables) == (checkpoint, committables)


def test_nothing_is_committed_before_its_checkpoint_is_complete() -> None:
    one = committer(3)
    assert run(one, prepared(1), prepared(2)) == []
    check_commit(run(one, complete(1)), 1, "e1")
    assert run(one, succeeded(1)) == [reported(1)]
    assert one.pending == ((2, "e2"),)


def test_the_epoch_of_an_aborted_checkpoint_is_committed_with_the_next_in_order() -> None:
    one = committer(3)
    check_commit(run(one, prepared(1), prepared(2), prepared(3), complete(3)), 3, "e1", "e2", "e3")
    assert run(one, succeeded(3)) == [reported(3)]
    assert one.pending == ()


def test_completions_during_a_commit_are_merged_and_follow_it() -> None:
    one = committer(3)
    run(one, prepared(1), complete(1), prepared(2), prepared(3))
    assert run(one, complete(2), complete(3)) == []
    report, *following = run(one, succeeded(1))
    assert report == reported(1)
    check_commit(following, 3, "e2", "e3")
    assert run(one, succeeded(3)) == [reported(3)]


def test_what_is_prepared_during_a_commit_is_not_part_of_it() -> None:
    one = committer(3)
    run(one, prepared(1), complete(1), prepared(2))
    assert run(one, succeeded(1)) == [reported(1)]
    assert one.pending == ((2, "e2"),)


def test_an_empty_epoch_is_reported_without_a_commit() -> None:
    one = committer(3)
    assert run(one, prepared(1, None), complete(1)) == [reported(1)]
    check_commit(run(one, prepared(2), prepared(3, None), complete(3)), 3, "e2")
    assert run(one, prepared(4, None), complete(4)) == []
    assert run(one, succeeded(3)) == [reported(3), reported(4)]


def test_a_committable_that_is_falsy_is_committed_all_the_same() -> None:
    check_commit(run(committer(3), prepared(1, 0), prepared(2, []), complete(2)), 2, 0, [])


def test_a_completion_that_is_late_or_told_twice_changes_nothing() -> None:
    one = committer(3)
    run(one, prepared(1), prepared(2), complete(2))
    assert run(one, complete(1), complete(2)) == []
    assert run(one, succeeded(2)) == [reported(2)]
    assert run(one, complete(2), complete(1)) == []


def test_a_failed_commit_is_repeated_unchanged_and_then_given_up() -> None:
    one = committer(2)
    run(one, prepared(1), complete(1), prepared(2), complete(2))
    check_commit(run(one, failed(1), LATER), 1, "e1")
    check_commit(run(one, failed(1), LATER), 1, "e1")
    [last] = run(one, failed(1))
    assert isinstance(last, EndAttempt)
    assert "checkpoint 1 failed 3 times: connection reset" in last.reason
    assert one.pending == ((1, "e1"), (2, "e2")), "the outcome is unknown, so it stays pending"
    assert run(one, prepared(3), complete(3)) == []


def test_the_count_of_failures_starts_again_with_each_commit() -> None:
    one = committer(1)
    run(one, prepared(1), complete(1), failed(1), LATER, succeeded(1), prepared(2), complete(2))
    check_commit(run(one, failed(2), LATER), 2, "e2")


def test_a_failed_commit_is_not_repeated_before_its_delay_is_over_and_delays_grow_up_to_a_maximum() -> None:
    one = committer(10)
    run(one, prepared(1), complete(1))
    now_ms, waited_ms = 0.0, []
    for _ in range(5):
        assert run(one, failed(1, now_ms)) == []
        assert one.due_ms is not None
        assert run(one, RetryDue(one.due_ms - 0.1)) == []
        waited_ms.append(one.due_ms - now_ms)
        now_ms = one.due_ms
        check_commit(run(one, RetryDue(now_ms)), 1, "e1")
    assert waited_ms == [100, 200, 400, 500, 500]
    assert one.due_ms is None, "a commit is under way"


def test_what_is_granted_while_a_commit_waits_to_be_repeated_follows_it() -> None:
    one = committer(3)
    run(one, prepared(1), complete(1), failed(1), prepared(2))
    assert run(one, complete(2)) == []
    assert one.pending == ((1, "e1"), (2, "e2"))
    check_commit(run(one, LATER), 1, "e1")
    report, *following = run(one, succeeded(1))
    assert report == reported(1)
    check_commit(following, 2, "e2")


def test_no_time_is_due_when_nothing_waits() -> None:
    one = committer(3)
    assert one.due_ms is None and run(one, LATER) == []
    run(one, prepared(1), complete(1))
    assert one.due_ms is None and run(one, LATER) == []


def test_a_snapshot_carries_what_is_pending_until_the_commit_is_known() -> None:
    one = committer(3)
    run(one, prepared(1), prepared(2), complete(1), prepared(3))
    assert one.pending == ((1, "e1"), (2, "e2"), (3, "e3"))
    assert one.pending_at(CheckpointId(2)) == ((1, "e1"), (2, "e2"))
    run(one, failed(1))
    assert one.pending_at(CheckpointId(1)) == ((1, "e1"),)
    run(one, LATER, succeeded(1))
    assert one.pending_at(CheckpointId(2)) == ((2, "e2"),)


def test_what_was_restored_is_committed_first_and_carried_until_then() -> None:
    one = committer(3)
    check_commit(run(one, restored(5, "a", "b")), 5, "a", "b")
    assert run(one, prepared(6), complete(6)) == []
    assert one.pending == ((5, "a"), (5, "b"), (6, "e6"))
    report, *following = run(one, succeeded(5))
    assert report == reported(5)
    check_commit(following, 6, "e6")


def test_a_restored_checkpoint_without_committables_is_reported() -> None:
    one = committer(3)
    assert run(one, restored(5)) == [reported(5)]
    assert one.phase == AtRest()


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ((prepared(2), prepared(1)), "epoch 1 was prepared after epoch 2"),
        ((prepared(2), prepared(2)), "epoch 2 was prepared after epoch 2"),
        ((prepared(1), complete(2)), "checkpoint 2 is said to be complete without our epoch"),
        ((prepared(1), restored(5, "a")), "was restored after epoch 1"),
        ((restored(5), restored(5)), "was restored after epoch 5"),
        ((restored(5), prepared(5)), "epoch 5 was prepared after epoch 5"),
        ((prepared(1), succeeded(1)), "no commit of checkpoint 1 is under way"),
        ((prepared(1), complete(1), failed(2)), "no commit of checkpoint 2 is under way"),
        ((prepared(1), "completed"), "no such event"),
    ],
)
def test_what_must_never_happen_is_a_violation_that_shows_the_events(
    events: tuple[CommitEvent, ...], found: str
) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        run(committer(3), *events)
    assert found in str(caught.value)
    assert repr(events[0]) in str(caught.value)


def test_every_phase_handles_or_refuses_every_event() -> None:
    """Without a commit under way an answer is refused; everything else is heard in every phase."""
    reach: dict[type, Callable[[Committer], object]] = {
        AtRest: lambda one: None,
        Committing: lambda one: run(one, prepared(1), complete(1)),
        Retrying: lambda one: run(one, prepared(1), complete(1), failed(1)),
        GaveUp: lambda one: run(one, prepared(1), complete(1), failed(1), LATER, failed(1)),
    }
    refused = {(AtRest, CommitSucceeded), (AtRest, CommitFailed), (Retrying, CommitSucceeded), (Retrying, CommitFailed)}
    refused |= {(phase, RestoredPending) for phase in (Committing, Retrying, GaveUp)}
    for phase, prepare in reach.items():
        for event in (prepared(9), complete(1), restored(1), succeeded(1), failed(1), RetryDue(50.0), LATER):
            one = committer(1)
            prepare(one)
            assert type(one.phase) is phase
            if phase is AtRest and isinstance(event, Completed):
                run(one, prepared(1))
            if (phase, type(event)) in refused:
                with pytest.raises(ProtocolViolation):
                    one.handle(event)
            else:
                one.handle(event)


def test_a_grant_cannot_be_made_by_hand() -> None:
    with pytest.raises(ProtocolViolation, match="made by hand"):
        CommitGrant(CheckpointId(1), seal=object())


def test_epochs_that_wait_for_ever_end_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "EPOCHS_PENDING_MAX", 3)
    one = committer(3)
    assert run(one, prepared(1), complete(1), prepared(2), prepared(3)) == []
    [effect] = run(one, prepared(4))
    assert isinstance(effect, EndAttempt)
    assert run(one, prepared(5)) == []
    assert run(one, succeeded(1)) == []


# --- Crashes at any point -----------------------------------------------------------------------------


class World:
    """One sink subtask that writes numbered rows, over attempts that crash, beside a driver that publishes some
    checkpoints. A commit may happen although it fails. The external system refuses to take an epoch twice silently:
    it knows committables by their name, so a repeated commit changes nothing."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.external: dict[str, int] = {}
        self.manifest: tuple[int, int, list[Json]] | None = None
        """Checkpoint, source position and pending committables of the newest published one."""
        self.next_checkpoint = 1
        self.attempt = 0

    def attempt_once(self, steps: int, faults: bool) -> None:
        self.attempt += 1
        one = committer(1_000)
        position, in_flight, completions = 0, [], []
        acknowledged: list[tuple[int, int, list[Json]]] = []
        if self.manifest is not None:
            checkpoint, position, pending = self.manifest
            in_flight += one.handle(restored(checkpoint, *pending))
        epoch_start = position
        for _ in range(steps):
            action = self.dice.choice(("row", "barrier", "publish", "notice", "commit"))
            if action == "row":
                position += 1
            elif action == "barrier":
                rows = list(range(epoch_start, position))
                name = {"name": f"a{self.attempt}-c{self.next_checkpoint}", "rows": rows} if rows else None
                in_flight += one.handle(prepared(self.next_checkpoint, name))
                carried = [item for _, item in one.pending_at(CheckpointId(self.next_checkpoint))]
                acknowledged.append((self.next_checkpoint, position, carried))
                self.next_checkpoint += 1
                epoch_start = position
            elif action == "publish" and acknowledged:
                index = self.dice.randrange(len(acknowledged))
                self.manifest = acknowledged[index]
                acknowledged = acknowledged[index + 1 :]
                completions.append(self.manifest[0])
            elif action == "notice" and completions:
                in_flight += one.handle(complete(completions.pop(0)))
            elif action == "commit" and in_flight:
                in_flight += self.perform(one, in_flight.pop(0), faults)

    def perform(self, one: Committer, effect: CommitEffect, faults: bool) -> list[CommitEffect]:
        if not isinstance(effect, Commit):
            return []
        happens, says_so = (self.dice.random() < 0.7, self.dice.random() < 0.7) if faults else (True, True)
        if happens:
            for committable in effect.committables:
                self.external[committable["name"]] = committable["rows"]
        if happens and says_so:
            return one.handle(CommitSucceeded(effect.grant.checkpoint))
        one.handle(failed(effect.grant.checkpoint))
        return one.handle(LATER)

    def rows(self) -> list[int]:
        return sorted(row for rows in self.external.values() for row in rows)


def test_crashes_at_any_point_lose_nothing_and_repeat_nothing() -> None:
    rows = 0
    for seed in range(500):
        world = World(seed)
        for _ in range(world.dice.randint(1, 6)):
            world.attempt_once(world.dice.randint(0, 60), faults=True)
            committed = world.rows()
            published = 0 if world.manifest is None else world.manifest[1]
            assert committed == sorted(set(committed)), f"seed {seed}: a row twice"
            assert not committed or committed[-1] < published, f"seed {seed}: a row that is in no checkpoint"
        if world.manifest is not None:
            checkpoint, position, pending = world.manifest
            last = committer(0)
            for effect in last.handle(restored(checkpoint, *pending)):
                world.perform(last, effect, faults=False)
            assert world.rows() == list(range(position)), f"seed {seed}: a row is lost"
            rows += position
    assert rows > 1_000
