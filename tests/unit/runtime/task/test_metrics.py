"""What tasks tell, added up."""

from __future__ import annotations

from typing import Any

from weir.runtime.task.metrics import TimeSpent, operator_metrics


def operator(uid: str, rows_in: int, rows_out: int) -> dict[str, Any]:
    return {
        "uid": uid,
        "name": uid.title(),
        "rows_in": rows_in,
        "rows_out": rows_out,
        "bytes_in": rows_in * 8,
        "bytes_out": rows_out * 8,
        "rows_late": 0,
    }


def subtask(vertex: int, *operators: dict[str, Any], lag: str | None = None, **spent_ms: float) -> dict[str, Any]:
    return {"vertex": vertex, "operators": list(operators), "lag": lag, "spent_ms": spent_ms}


def test_counters_are_added_up_over_subtasks_in_the_order_of_the_plan() -> None:
    tasks = [
        {"subtasks": [subtask(1, operator("sink", 5, 0)), subtask(0, operator("source", 0, 10))]},
        {"subtasks": [subtask(0, operator("source", 0, 20))]},
    ]
    source, sink = operator_metrics(tasks)
    assert (source["uid"], source["name"], source["rows_out"], source["bytes_out"]) == ("source", "Source", 30, 240)
    assert (sink["uid"], sink["rows_in"]) == ("sink", 5)


def test_backpressure_is_the_share_of_time_with_a_full_output() -> None:
    tasks = [
        {"subtasks": [subtask(0, operator("source", 0, 1), busy=10, blocked=30, idle=0)]},
        {"subtasks": [subtask(0, operator("source", 0, 1), busy=20, blocked=0, idle=40)]},
    ]
    (source,) = operator_metrics(tasks)
    assert (source["busy"], source["backpressure"]) == (0.3, 0.3)


def test_between_two_turns_a_subtask_is_as_its_last_turn_left_it() -> None:
    spent = TimeSpent(since_ms=0.0)
    spent.stepped("busy", 5.0, 6.0)  # idle before, then one millisecond of work
    spent.stepped("blocked", 8.0, 8.5)  # others had their turns: it still had work
    spent.stepped("blocked", 30.0, 30.0)  # the task napped, since the output stayed full
    spent.stepped("idle", 31.0, 31.0)
    spent.stepped("idle", 131.0, 131.0)  # the task napped, since there was nothing to do
    assert spent.totals_ms == {"idle": 105.0, "busy": 3.0, "blocked": 23.0}


def test_a_task_that_has_done_nothing_yet_is_under_no_pressure() -> None:
    (source,) = operator_metrics([{"subtasks": [subtask(0, operator("source", 0, 0))]}])
    assert (source["busy"], source["backpressure"]) == (0.0, 0.0)


def test_only_the_source_of_a_chain_has_the_lag_and_it_has_that_of_every_subtask() -> None:
    chain = (operator("source", 0, 1), operator("filter", 1, 1))
    tasks = [{"subtasks": [subtask(0, *chain, lag=f"{n} rows")]} for n in (3, 4)]
    source, filtered = operator_metrics(tasks)
    assert source["lag"] == ["3 rows", "4 rows"]
    assert "lag" not in filtered


def test_nothing_told_is_nothing_to_show() -> None:
    assert operator_metrics([]) == []
