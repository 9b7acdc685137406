"""A start while storage is away: who waits, for how long, and who is told at once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.sim.ports import SimClock
from weir.config import Checkpoints, ExponentialDelay, JobConfig, NoRestart, Restart, Settings
from weir.errors import JobError, StorageUnavailable
from weir.runtime.storage.opening import open_storage, open_writable
from weir.runtime.storage.patience import is_outage, patiently


class Start:
    """Something that needs storage, which is away for some time."""

    def __init__(self, away_ms: float, *, resume: bool = True, restart: Restart | None = None) -> None:
        self.clock = SimClock()
        self.tries = 0
        self._away_ms = away_ms
        self._config = JobConfig("clicks", Checkpoints(), restart or ExponentialDelay(), Settings(), resume=resume)

    def run(self) -> str:
        return patiently(self._config, self._act, clock=self.clock, sleep=self._sleep, chance=lambda: 1.0)

    def _act(self) -> str:
        self.tries += 1
        if self.clock.time_ms < self._away_ms:
            try:
                raise StorageUnavailable("connection refused")
            except StorageUnavailable as error:
                raise JobError(f"the checkpoint location cannot be written: {error}") from error
        return "started"

    def _sleep(self, seconds: float) -> None:
        self.clock.time_ms += seconds * 1_000


def test_a_job_that_is_resumed_waits_for_its_storage_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    start = Start(3_600_000)
    with caplog.at_level(logging.WARNING):
        assert start.run() == "started"
    assert start.clock.time_ms < 3_600_000 + 30_000
    assert start.tries < 140
    first, *_, last = [record.getMessage() for record in caplog.records]
    assert first.startswith("job clicks waits for storage, for 0 s up to now, and looks again in 0.1 s: ")
    assert "in 30.0 s: the checkpoint location cannot be written: connection refused" in last


def test_a_first_start_is_refused_at_once() -> None:
    start = Start(1_000, resume=False)
    with pytest.raises(JobError, match="connection refused"):
        start.run()
    assert start.tries == 1


def test_who_wants_no_restart_is_told_at_once() -> None:
    with pytest.raises(JobError, match="connection refused"):
        Start(1_000, restart=NoRestart()).run()


def test_patience_ends() -> None:
    start = Start(24 * 3_600_000)
    with pytest.raises(JobError, match="connection refused"):
        start.run()
    assert 6 * 3_600_000 < start.clock.time_ms <= 6 * 3_600_000 + 30_000


def test_a_place_that_cannot_be_a_directory_is_a_mistake_and_no_outage(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(JobError) as caught:
        open_writable(str(tmp_path / "file" / "checkpoints"), "the checkpoint location", open_storage)
    assert not is_outage(caught.value)
    assert not is_outage(ValueError("odd"))
