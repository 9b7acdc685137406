"""How subtasks spend their time; and what tasks tell with their heartbeats, added up for people.

Comes in: steps with their times, and the latest metrics of every task. Goes out: one
mapping per operator with its rows, bytes and backpressure. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weir.graph.plan import Plan
from weir.snapshot.parts import Json

COUNTERS = ("rows_in", "rows_out", "bytes_in", "bytes_out", "rows_late")


@dataclass
class TimeSpent:
    """One subtask's time by activity. A task's subtasks take turns: between two of its turns a subtask is counted as
    being in the condition in which its last turn left it."""

    since_ms: float
    activity: str = "idle"
    totals_ms: dict[str, float] = field(default_factory=dict)

    def stepped(self, activity: str, started_ms: float, ended_ms: float) -> None:
        totals = self.totals_ms
        totals[self.activity] = totals.get(self.activity, 0.0) + started_ms - self.since_ms
        totals[activity] = totals.get(activity, 0.0) + ended_ms - started_ms
        self.activity, self.since_ms = activity, ended_ms


def operator_metrics(tasks: Iterable[Json], plan: Plan | None = None) -> list[dict[str, Any]]:
    """Counters summed over subtasks; backpressure is the share of time that subtasks waited for a full output.

    `plan`: every operator of it is there, with zeros as long as no task has told of it.
    """
    totals: dict[str, dict[str, Any]] = {} if plan is None else _at_first(plan)
    spent: dict[str, dict[str, float]] = {}
    for task in tasks:
        for subtask in task["subtasks"]:
            for operator in subtask["operators"]:
                uid = operator["uid"]
                total = totals.setdefault(uid, {"uid": uid, "name": operator["name"], "vertex": subtask["vertex"]})
                for counter in COUNTERS:
                    total[counter] = total.get(counter, 0) + operator[counter]
                _add(spent.setdefault(uid, {}), subtask["spent_ms"])
                if subtask["lag"] is not None and operator is subtask["operators"][0]:
                    total.setdefault("lag", []).append(subtask["lag"])
    for uid, total in totals.items():
        by_activity = spent.get(uid, {})
        whole = sum(by_activity.values())
        total["busy"] = round(by_activity.get("busy", 0.0) / whole, 3) if whole else 0.0
        total["backpressure"] = round(by_activity.get("blocked", 0.0) / whole, 3) if whole else 0.0
    return sorted(totals.values(), key=lambda total: total["vertex"])


def _at_first(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        operator.uid: {"uid": operator.uid, "name": operator.name, "vertex": index, **dict.fromkeys(COUNTERS, 0)}
        for index, vertex in enumerate(plan.vertices)
        for operator in vertex.operators
    }


def _add(into: dict[str, float], more: Mapping[str, float]) -> None:
    for key, value in more.items():
        into[key] = into.get(key, 0.0) + value
