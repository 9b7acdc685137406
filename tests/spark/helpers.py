"""What the tests of whole jobs share: one keyed job with a known answer, its checker, and how to find processes.

The job numbers its rows 0 to N, writes them as they are through one sink, and running counts and sums by key
through another. Both sinks write jsonl, so that the checker reads what a stranger would read.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

import weir
from weir import connectors as io
from weir.connectors.files.parts import PartDirectory
from weir.runtime.storage.opening import open_storage

N = TypeVar("N")

KEYS = 17
GATE = "gate"
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"


# --- The job ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Numbered:
    """Row n: its number, its key, and a weight that follows from the key alone.

    Slow, so that there is time to kill something, until the gate is opened: then as fast as rows are taken.
    """

    gate: str | None = None
    batches_per_s: float = 50.0

    def __call__(self, numbers: Any) -> dict[str, Any]:
        if self.gate is not None and not os.path.exists(self.gate):
            threading.Event().wait(1 / self.batches_per_s)
        return {"n": numbers, "key": numbers % KEYS, "weight": weight(numbers % KEYS)}


def weight(key: Any) -> Any:
    return key * 7 + 3


def open_gate(directory: Path) -> None:
    (directory / GATE).touch()


def slow_settings(**more: Any) -> weir.Settings:
    """With a closed gate a subtask then makes 50 × 200 rows a second."""
    return weir.Settings(**{"batch_rows_max": 200, **more})


def numbers(environment: weir.Environment, directory: Path, rows: int | None, *, uid: str = "numbers") -> weir.Stream:
    """The numbered rows, slow until `open_gate(directory)`."""
    make = Numbered(str(directory / GATE))
    return environment.generate(rows, make, "n long, key long, weight long", uid=uid)


def build_job(environment: weir.Environment, directory: Path, *, rows: int | None) -> None:
    """Plain rows to `directory`/plain, running counts by key to `directory`/counts."""
    stream = numbers(environment, directory, rows)
    stream.select("n", uid="only-n").write(io.FileSink(directory / "plain", "jsonl"), uid="plain")
    counts = stream.key_by("key").agg(count=weir.count(), total=weir.sum("n"), weights=weir.sum("weight"), uid="by-key")
    counts.write(io.FileSink(directory / "counts", "jsonl"), uid="counts")


# --- What it must have written ----------------------------------------------------------------------


def committed_rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of the committed parts of a sink, in the order in which they were written."""
    if not directory.exists():
        return []
    parts = PartDirectory(open_storage(str(directory)), str(directory)).committed()
    return [json.loads(line) for name in parts for line in (directory / name).read_text().splitlines()]


def check_output(directory: Path, rows: int) -> None:
    """Every row counts exactly once: compared record by record with what the job must have committed."""
    check_plain(directory / "plain", rows)
    check_counts(directory / "counts", rows)


def check_plain(directory: Path, rows: int) -> None:
    seen = Counter(row["n"] for row in committed_rows(directory))
    expected = range(rows)
    lost = [n for n in expected if n not in seen]
    repeated = {n: times for n, times in seen.items() if times > 1}
    strange = [n for n in seen if n not in expected]
    assert (lost[:10], dict(list(repeated.items())[:10]), strange[:10]) == ([], {}, []), (
        f"lost {len(lost)}, repeated {len(repeated)}, strange {len(strange)} of {rows}"
    )


def check_counts(directory: Path, rows: int) -> None:
    newest: dict[int, dict[str, Any]] = {}
    for row in committed_rows(directory):
        key, before = row["key"], newest.get(row["key"], {"count": 0, "total": -1})
        assert row["count"] > before["count"], f"key {key}: count {row['count']} after {before['count']}"
        assert row["total"] > before["total"], f"key {key}: total {row['total']} after {before['total']}"
        assert row["weights"] == row["count"] * weight(key), f"key {key}: a row counted twice or not at all: {row}"
        newest[key] = row
    expected = {key: range(key, rows, KEYS) for key in range(min(KEYS, rows))}
    assert {key: (row["count"], row["total"]) for key, row in newest.items()} == {
        key: (len(numbers), sum(numbers)) for key, numbers in expected.items()
    }


def part_bytes(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its content: what must not have changed."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


# --- Checkpoints on disk ----------------------------------------------------------------------------


def completed_checkpoints(directory: Path, job: str) -> list[int]:
    """The ids of the checkpoints whose manifest is there."""
    manifests = (directory / job).glob("*/chk-*/manifest.json")
    return sorted(int(manifest.parent.name.removeprefix("chk-")) for manifest in manifests)


# --- Processes --------------------------------------------------------------------------------------


def executor_processes() -> list[psutil.Process]:
    """The executor JVMs that this process's Spark has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(EXECUTOR_CLASS in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill(process_id: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; False when the process is gone already."""
    try:
        os.kill(process_id, number)
    except ProcessLookupError:
        return False
    return True


def listening_ports(process_ids: Sequence[int]) -> set[int]:
    """The ports at which these processes listen."""
    ports: set[int] = set()
    for process_id in process_ids:
        try:
            connections = psutil.Process(process_id).net_connections("inet")
        except psutil.Error:
            continue
        ports |= {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}
    return ports


# --- Jobs -------------------------------------------------------------------------------------------


def operator_of(metrics: Mapping[str, Any], uid: str) -> Mapping[str, Any]:
    (found,) = [operator for operator in metrics["operators"] if operator["uid"] == uid]
    return found


def notices_of(job: Any, kind: type[N]) -> list[N]:
    return [notice for notice in job.notices if isinstance(notice, kind)]
