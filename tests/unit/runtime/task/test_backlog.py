"""What waits at the head of a loop, when there is no place for it."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from weir.errors import LocalDiskFailed
from weir.runtime.task.backlog import Backlog

BATCH = pa.record_batch({"n": pa.array(range(1_000))})


def test_a_full_disk_is_told_with_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    backlog = Backlog(0, 1 << 20, str(tmp_path))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(LocalDiskFailed, match=rf"state of [\d,]+ bytes .* {tmp_path}: .*No space left"):
        backlog.put(BATCH)


def test_a_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    backlog = Backlog(0, 1 << 20, str(tmp_path / "gone"))
    with pytest.raises(LocalDiskFailed, match=r"gone: .*No such file"):
        backlog.put(BATCH)
