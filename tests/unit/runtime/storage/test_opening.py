"""Opening storage by location, and what is said of a place that cannot be opened or written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from weir.errors import ConfigError, JobError, StorageUnavailable
from weir.runtime.storage.opening import check_writable, open_storage, open_writable
from weir.runtime.storage.stores import files as storage_files
from weir.runtime.storage.stores.files import LocalStorage


def test_an_unknown_scheme_is_refused_by_name_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'foo' is not known.*file://, s3://, gs://.*hdfs://"):
        open_storage("foo://bucket/x")


def test_nothing_is_made_when_not_asked_to(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "nothing", create=False)
    assert storage.list("") == []
    assert not (tmp_path / "nothing").exists()


def test_a_file_where_a_directory_is_needed_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageUnavailable, match=r"file where a directory is needed.*file"):
        open_storage(tmp_path / "file" / "below")
    with pytest.raises(JobError, match=r"checkpoints of 'job' at '.*below' cannot be written"):
        open_writable(str(tmp_path / "file" / "below"), "checkpoints of 'job'", open_storage)


def test_an_unwritable_location_is_a_job_error_that_names_it_and_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path))

    def denied(_descriptor: int) -> None:
        raise PermissionError(errno.EACCES, "denied by test")

    with monkeypatch.context() as patch:
        patch.setattr(storage_files.os, "fsync", denied)
        with pytest.raises(JobError, match=r"checkpoint location /x cannot be written: .*denied by test"):
            check_writable(storage, "checkpoint location /x")
    check_writable(storage, "checkpoint location /x")
    assert os.listdir(tmp_path) == []
