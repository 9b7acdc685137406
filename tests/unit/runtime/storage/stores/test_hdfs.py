"""What is special about HDFS, without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from weir.runtime.storage.stores import files as storage_files
from weir.runtime.storage.stores.hdfs import HdfsStorage


class OneHdfsDirectory:
    """As much of HDFS's client as is asked for when a directory is removed."""

    def __init__(self, modified_ms: dict[str, float]) -> None:
        self.modified_ms = modified_ms
        self.deleted: list[str] = []

    def get_file_info(self, path: str) -> SimpleNamespace:
        return SimpleNamespace(isdir=True)

    def list_status(self, path: str, recursive: bool) -> Iterator[SimpleNamespace]:
        for name, modified_ms in self.modified_ms.items():
            yield SimpleNamespace(path=f"{path}/{name}", isdir=False, modification_time=modified_ms)

    def delete(self, path: str, recursive: bool) -> None:
        assert not recursive
        self.deleted.append(path)


def test_hdfs_too_removes_what_dead_writers_left_and_nothing_else() -> None:
    dead, alive = f"{storage_files.TEMPORARY}dead", f"{storage_files.TEMPORARY}alive"
    client: Any = OneHdfsDirectory({dead: 0, alive: time.time() * 1_000, "mine": 0})
    HdfsStorage(client, "/base", location="hdfs://base").prune("chk")
    assert client.deleted == [f"/base/chk/{dead}", "/base/chk"]
