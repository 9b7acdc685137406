"""The barrier stage on executors that are processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.conftest import LongTasks, alive
from weir.errors import TaskLost


def parent(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_a_killed_executor_fails_the_stage_and_the_next_one_waits_for_its_replacement(
    local_cluster: Any, long_tasks: Callable[..., LongTasks]
) -> None:
    tasks = long_tasks(local_cluster)
    executors = {parent(parent(process_id)) for process_id in tasks.process_ids}
    assert len(executors) == 2
    os.kill(parent(parent(tasks.process_ids[0])), signal.SIGKILL)
    assert tasks.stage.wait(10)
    assert isinstance(tasks.stage.error, TaskLost)
    assert "executor" in str(tasks.stage.error) and "was lost" in str(tasks.stage.error)
    tasks.leave()
    again = long_tasks(local_cluster)
    assert all(alive(process_id) for process_id in again.process_ids)
    assert {parent(parent(process_id)) for process_id in again.process_ids} != executors
    again.leave()
    assert again.stage.wait(10) and again.stage.error is None
