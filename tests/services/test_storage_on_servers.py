"""The storage contract against real servers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.storage_contract import Opened, StorageContract
from tests.services.conftest import new_place
from tests.services.servers import Hdfs, Versitygw
from weir.runtime.storage import open_storage

QUICK = pytest.mark.quick


class TestStorageOnServers(StorageContract):
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
