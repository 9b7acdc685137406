"""The storage contract against real servers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.contract.storage_contract import Opened, ReadableStorageContract
from tests.services.conftest import new_place
from tests.services.servers import ACCESS_KEY, SECRET_KEY, Hdfs, Versitygw
from weir.errors import StorageUnavailable
from weir.runtime.storage.opening import open_storage
from weir.runtime.storage.stores.retry import Patience

S3 = [pytest.param("s3", marks=pytest.mark.quick), "minio"]
QUICK = pytest.mark.quick


class TestStorageOnServers(ReadableStorageContract):
    @pytest.fixture(params=[pytest.param("s3", marks=QUICK), pytest.param("hdfs", marks=QUICK), "minio"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def opened(self, kind: str, servers: Callable[[str], Versitygw | Hdfs]) -> Opened:
        place = new_place(servers(kind))
        return lambda: open_storage(place)

    @pytest.fixture
    def race_rounds(self, kind: str) -> int:
        return 25 if kind == "hdfs" else 200


@pytest.mark.parametrize("kind", S3)
def test_what_a_console_marks_directories_with_is_no_file(
    kind: str, servers: Callable[[str], Versitygw | Hdfs]
) -> None:
    server = servers(kind)
    assert isinstance(server, Versitygw)
    place = new_place(server)
    storage = open_storage(place)
    storage.write("rows.jsonl", b"{}")
    for name in ("", "sub/", "sub/deeper/"):
        _mark(server, place, name)
    assert storage.list("") == ["rows.jsonl", "sub"] and storage.sizes("") == {"rows.jsonl": 2}
    assert storage.list("sub") == ["deeper"] and storage.sizes("sub/deeper") == {}
    assert storage.is_directory("sub/deeper")
    storage.delete("")
    assert storage.sizes("") == {}


def _mark(server: Versitygw, place: str, name: str) -> None:
    """Obstore cannot name such an object."""
    path = place.partition("://")[2].partition("?")[0]
    signed = ["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{ACCESS_KEY}:{SECRET_KEY}"]
    empty = ["-X", "PUT", "--data-binary", "", "-H", "Content-Type: application/x-directory"]
    digest = "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    command = ["curl", "-sS", "--fail", *signed, *empty, "-H", digest, f"{server.endpoint}/{path}/{name}"]
    subprocess.run(command, check=True)


@pytest.mark.parametrize("kind", S3)
@pytest.mark.parametrize("key", ["nobody", ACCESS_KEY])
def test_wrong_credentials_are_told_from_a_missing_file(
    kind: str, key: str, servers: Callable[[str], Versitygw | Hdfs]
) -> None:
    place = new_place(servers(kind)).replace("s3://", f"s3://{key}:wrong-secret@")
    storage = open_storage(place, patience=Patience(retries_max=0))
    for call in (storage.read, storage.list, lambda path: storage.write(path, b"x")):
        with pytest.raises(StorageUnavailable, match=r"[Aa]ccess [Kk]ey|access key|SignatureDoesNotMatch") as refused:
            call("file")
        assert "wrong-secret" not in str(refused.value)
