"""The benchmark of storage: what it prints, and that a store which loses or mixes up data is found out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from weir.bench import checkpoint_store
from weir.cli.main import application
from weir.runtime.storage.stores.memory import MemoryStorage

SMALL = ["--calls", "3", "--files", "4", "--file-size", "1KB", "--large-size", "64KB"]


def bench(to: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(application(), ["bench", "checkpoint-store", "--to", to, *SMALL, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_a_directory_is_measured_verified_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("stays")
    code, report = bench(str(tmp_path))
    assert code == 0 and report["verified"] is True
    for call in ("write", "publish", "create", "create_refused", "read", "list", "move", "delete"):
        assert float(str(report[f"{call}_p99_ms"])) >= float(str(report[f"{call}_p50_ms"])) >= 0
    assert report["checkpoint_files"] == 4 and "large_write_mb_per_s" in report
    assert [path.name for path in tmp_path.iterdir() if any(path.iterdir() if path.is_dir() else [path])] == ["mine"]


class Careless(MemoryStorage):
    def create(self, path: str, data: bytes) -> bool:
        self.write(path, data)
        return True


class Forgetful(MemoryStorage):
    def delete(self, path: str) -> None:
        if not path.startswith("moved"):
            super().delete(path)


@pytest.mark.parametrize("kind", [Careless, Forgetful])
def test_a_store_that_does_not_keep_its_promises_fails_the_benchmark(
    kind: type[MemoryStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = kind(1 << 24)
    monkeypatch.setattr(checkpoint_store, "open_storage", lambda location: storage)
    code, report = bench("wrong://bucket")
    assert code == 1 and report["verified"] is False
