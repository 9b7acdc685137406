"""A local disk without room: the snapshot and the stream are told, and neither waits for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILE_BYTES_MAX = 300_000

SCRIPT = f"""
import os, resource, signal, sys
from weir.errors import LocalDiskFailed
from weir.state.rocks.database import Database, Memory

def filled(rows):
    return [(os.urandom(8), os.urandom(200)) for _ in range(rows)]

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
database = Database(sys.argv[1] + "/database", Memory(4 << 20))
database.write([(b"first", b"value")])
resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_BYTES_MAX}, {FILE_BYTES_MAX}))
if sys.argv[2] == "snapshot":
    database.write(filled(2_000))
    links = database.freeze(sys.argv[1] + "/frozen")
try:
    if sys.argv[2] == "snapshot":
        links.make()
    for _ in range(100):
        database.write(filled(1_000))
except LocalDiskFailed as error:
    print(error)
    print(database.get(b"first"))
"""


@pytest.mark.parametrize("who", ["snapshot", "stream"])
def test_who_writes_is_told_the_directory_and_how_much_is_free(who: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), who], capture_output=True, text=True, check=True, timeout=60
    )
    told, first = ran.stdout.splitlines()
    assert told.startswith(f"state cannot be written to the local directory {tmp_path}/database: IO error: ")
    assert "File too large" in told and "bytes are free there. Make room" in told
    assert first == "b'value'"
