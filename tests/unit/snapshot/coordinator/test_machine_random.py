"""The coordinator against random tasks and storage: whatever happens, the laws hold, and the job ends.

A seed draws settings, acknowledgements, refusals, crashes and the order of all of it.
"""

from __future__ import annotations

import random

from tests.unit.snapshot.coordinator.coordinated import SINK, SOURCE, Job
from weir.ids import AttemptId, CheckpointId, SubtaskId
from weir.snapshot.coordinator.events import CheckpointRequested
from weir.snapshot.coordinator.orders import (
    CoordinatorEffect,
    FailAttempt,
    FinishJob,
    PublishManifest,
    RetireCheckpoints,
    SendAbort,
    SendCompleted,
    SendTrigger,
)
from weir.snapshot.coordinator.under_way import CoordinatorSettings
from weir.snapshot.messages import SubtaskFinished

SEEDS = 300


class World:
    """Two tasks and a storage that do what the dice say, and the laws as checks."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.settings = CoordinatorSettings(
            interval_ms=self.dice.choice((None, 10, 50)),
            timeout_ms=self.dice.choice((30, 200)),
            min_pause_ms=self.dice.choice((0, 20)),
            max_concurrent=self.dice.randint(1, 3),
            tolerable_failures=self.dice.randint(0, 3),
            retain=self.dice.randint(1, 3),
        )
        self.job = Job(self.settings, start=False)
        self.exists: list[CheckpointId] = []
        self.newest_id = 0
        self.done = False
        self.begin()

    def begin(self) -> None:
        """A new attempt: everything that belongs to one is forgotten."""
        self.acknowledged: dict[CheckpointId, set[SubtaskId]] = {}
        self.publishing: CheckpointId | None = None
        self.told = CheckpointId(0)
        self.committed = CheckpointId(0)
        self.finished: set[SubtaskId] = set()
        self.finished_before = CheckpointId(0)
        # Storage shows no trace of a checkpoint of which nothing was written.
        lowest = max(self.exists, default=CheckpointId(0)) + 1
        shown = self.dice.randint(lowest, max(lowest, self.newest_id + 1))
        self.check(self.job.start(next_checkpoint=shown, completed=tuple(self.exists)))

    def check(self, effects: list[CoordinatorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, SendTrigger):
                assert effect.checkpoint > self.newest_id, "an id is used twice"
                self.newest_id = effect.checkpoint
                self.acknowledged[effect.checkpoint] = set()
                limit = 1 if len(self.finished) == 2 else 0
                assert len(self.acknowledged) <= self.settings.max_concurrent + limit
                if limit and not self.finished_before:
                    self.finished_before = effect.checkpoint
            elif isinstance(effect, SendAbort):
                assert effect.checkpoint != self.publishing, "its outcome is unknown"
                del self.acknowledged[effect.checkpoint]
            elif isinstance(effect, PublishManifest):
                assert self.publishing is None
                assert self.acknowledged[effect.checkpoint] == {SOURCE, SINK} == set(effect.parts)
                self.publishing = effect.checkpoint
            elif isinstance(effect, SendCompleted):
                assert effect.checkpoint in self.exists and effect.checkpoint > self.told
                self.told = effect.checkpoint
                self.acknowledged.pop(effect.checkpoint)
            elif isinstance(effect, RetireCheckpoints):
                kept = [n for n in self.exists if n >= effect.oldest_kept]
                wanted = min(self.settings.retain, len(self.exists))
                # What a checkpoint under way builds on stays, too.
                assert wanted <= len(kept) <= wanted + self.settings.max_concurrent
                self.exists = kept
            elif isinstance(effect, FailAttempt):
                assert effect is effects[-1]
                self.crash()
            elif isinstance(effect, FinishJob):
                assert not self.done and self.committed >= self.finished_before > 0, "the last rows are not committed"
                self.done = True

    def crash(self) -> None:
        in_doubt = self.publishing
        self.check(self.job.end())
        if in_doubt is not None and self.dice.random() < 0.5:
            self.exists.append(in_doubt)
            if self.dice.random() < 0.5:
                assert self.job.published(in_doubt) == []
        self.begin()
        if in_doubt is not None and in_doubt not in self.exists:
            assert self.job.published(in_doubt) == [], "told to an attempt that did not restore it"

    def acknowledge(self, decline: bool) -> None:
        if not self.acknowledged:
            return
        checkpoint = self.dice.choice(list(self.acknowledged))
        if decline:
            self.check(self.job.declined(checkpoint))
            return
        subtask = self.dice.choice((SOURCE, SINK))
        if self.dice.random() < 0.1:
            assert self.job.taken(checkpoint, subtask, attempt=self.job.attempt - 1) == []
            return
        self.acknowledged[checkpoint].add(subtask)
        self.check(self.job.taken(checkpoint, subtask))

    def answer(self, refuse: bool) -> None:
        checkpoint = self.publishing
        if checkpoint is None:
            return
        self.publishing = None
        if refuse:
            self.check(self.job.refused(checkpoint))
        else:
            self.exists.append(checkpoint)
            self.check(self.job.published(checkpoint))

    def step(self, faults: bool) -> None:
        action = self.dice.random()
        if faults and action < 0.02:
            self.crash()
        elif faults and action < 0.05:
            self.acknowledge(decline=True)
        elif action < 0.08:
            self.check(self.job.tell(CheckpointRequested()))
        elif action < 0.12:
            subtask = self.dice.choice((SOURCE, SINK))
            self.finished.add(subtask)
            self.check(self.job.tell(SubtaskFinished(AttemptId(self.job.attempt), subtask)))
        elif action < 0.2:
            self.committed = self.told
            self.check(self.job.committed(self.told))
        elif action < 0.3:
            self.answer(refuse=faults and self.dice.random() < 0.2)
        elif action < 0.5:
            due_ms = self.job.coordinator.next_due_ms()
            if due_ms is not None and self.dice.random() < (0.5 if faults else 0.05):
                self.check(self.job.at(max(self.job.now_ms, due_ms)))
                following_ms = self.job.coordinator.next_due_ms()
                assert following_ms is None or following_ms > self.job.now_ms, "what was due is still to be done"
        else:
            self.acknowledge(decline=False)


def test_the_laws_hold_and_the_job_ends_once_the_faults_stop() -> None:
    aborted = 0
    for seed in range(SEEDS):
        world = World(seed)
        for _ in range(world.dice.randint(0, 150)):
            if not world.done:
                world.step(faults=True)
        for _ in range(3_000):
            if not world.done:
                world.step(faults=False)
        assert world.done, f"seed {seed}: the job does not end"
        aborted += sum(record.reason is not None for record in world.job.coordinator.history)
    assert aborted > SEEDS
