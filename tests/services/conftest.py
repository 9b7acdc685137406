"""Servers for the tests of this room: one of each kind for the whole run, and others for tests that kill them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.services.servers import SERVERS, Hdfs, Versitygw, s3_credentials
from weir.runtime.spark.session import stop_embedded

BUCKET = "tests"


@pytest.fixture(scope="session", autouse=True)
def credentials() -> Iterator[None]:
    """Where jobs and their tasks look for them: in the environment, before Spark is started."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_credentials().items():
            patch.setenv(name, value)
        yield


def pytest_sessionfinish() -> None:
    stop_embedded()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Versitygw | Hdfs]]:
    """`servers("s3")`: the server of that kind, started when it is asked for the first time."""
    running: dict[str, Versitygw | Hdfs] = {}

    def get(kind: str) -> Versitygw | Hdfs:
        if kind not in running:
            running[kind] = started(SERVERS[kind](tmp_path_factory.mktemp(kind) / "server"))
        return running[kind]

    yield get
    for server in running.values():
        server.stop()


def started(server: Versitygw | Hdfs) -> Versitygw | Hdfs:
    """The server, running, with a bucket where there are such."""
    if isinstance(server, Versitygw):
        server.make_bucket(BUCKET)
    server.start()
    return server


def new_place(server: Versitygw | Hdfs) -> str:
    """The URI of a directory that nobody has used."""
    name = uuid.uuid4().hex
    return server.uri(f"{BUCKET}/{name}" if isinstance(server, Versitygw) else name)
