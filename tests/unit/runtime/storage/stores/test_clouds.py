"""Object stores by URI, and what their errors say. No server is needed: the one that is asked here refuses."""

from __future__ import annotations

import http.server
import pickle
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import ClassVar

import obstore
import pytest
from obstore.store import MemoryStore

from weir.errors import ConfigError, StorageUnavailable
from weir.runtime.storage.locations import location_below, shown_location
from weir.runtime.storage.opening import claimable, open_storage
from weir.runtime.storage.stores import objects as storage_objects
from weir.runtime.storage.stores.clouds import open_object_store
from weir.runtime.storage.stores.objects import ObjectStorage
from weir.runtime.storage.stores.retry import Patience

CANARY = "canary-7f3a"
ONCE = Patience(retries_max=0, initial_ms=0, maximum_ms=0)
NOWHERE = "endpoint=http://127.0.0.1:9&allow_http=true&region=us-east-1"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("ENDPOINT_URL", "ENDPOINT", "ALLOW_HTTP", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    yield


def test_options_of_the_uri_configure_the_store() -> None:
    opened = open_object_store("s3://bucket/a%20b/c/?region=eu-west-1&endpoint=https://host:9000&timeout=7s", "shown")
    assert opened.root == "a b/c"
    config = opened.store.config  # type: ignore[union-attr]
    assert config["region"] == "eu-west-1" and config["endpoint"] == "https://host:9000"  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("s3://bucket/x?region=eu-west-1", "S3Store"),
        ("gs://bucket/x?skip_signature=true", "GCSStore"),
        ("gcs://bucket/x?skip_signature=true", "GCSStore"),
        ("abfss://container@account.dfs.core.windows.net/x?account_key=a2V5", "AzureStore"),
        ("az://container/x?account_name=account&account_key=a2V5", "AzureStore"),
    ],
)
def test_every_scheme_opens_its_store(uri: str, kind: str) -> None:
    opened = open_object_store(uri, "shown")
    assert type(opened.store).__name__ == kind
    assert opened.root == "x"


def test_what_pyarrow_took_is_still_taken() -> None:
    opened = open_object_store("s3://key:secret@bucket/x?endpoint_override=host:9000&scheme=https", "shown")
    config = opened.store.config  # type: ignore[union-attr]
    assert config["endpoint"] == "https://host:9000"  # type: ignore[typeddict-item]
    assert config["access_key_id"] == "key" and config["secret_access_key"] == "secret"  # type: ignore[typeddict-item]


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"s3://bucket/x'.*nonsense.*region and endpoint"):
        open_storage("s3://bucket/x?nonsense=1")


def test_an_unencrypted_endpoint_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"http://host is not encrypted.*allow_http=true"):
        open_storage("s3://bucket/x?endpoint=http://host")
    open_storage("s3://bucket/x?endpoint=http://host&allow_http=true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://other")
    with pytest.raises(ConfigError, match="http://other is not encrypted"):
        open_storage("s3://bucket/x")


def test_a_location_without_a_bucket_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no bucket"):
        open_storage("s3:///x")


def test_no_credential_shows_in_any_text() -> None:
    uri = f"s3://{CANARY}id:{CANARY}x@bucket/out?{NOWHERE}&session_token={CANARY}y"
    storage = open_storage(location_below(uri, "job"), patience=ONCE)
    texts = [repr(storage), str(storage), shown_location(uri)]
    for call in (storage.read, storage.list, storage.delete, lambda path: storage.write(path, b"x")):
        with pytest.raises(StorageUnavailable) as raised:
            call("file")
        texts += [str(raised.value), repr(raised.value), str(pickle.dumps(raised.value))]
        assert raised.value.__cause__ is None
    with pytest.raises(ConfigError) as refused:
        open_storage(f"{uri}&nonsense={CANARY}")
    texts.append(str(refused.value))
    assert [text for text in texts if CANARY in text] == []
    assert "s3://…@bucket/out/job/file" in texts[3]


@pytest.mark.parametrize(
    "place",
    [
        f"AKIA:{CANARY}/x@bucket/out",
        f"AKIA:7/{CANARY}@bucket/out",
        f"AKIA:x@{CANARY}/y@bucket/out",
        f"AK/IA:{CANARY}@bucket/out",
        f"AKIA:{CANARY}?x@bucket/out",
        f"AKIA:{CANARY}#x@bucket/out",
    ],
)
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_secret_that_a_uri_would_cut_is_refused_before_any_of_it_is_sent(scheme: str, place: str) -> None:
    with pytest.raises(ConfigError, match=r"write / as %2F") as refused:
        open_storage(f"{scheme}://{place}?{NOWHERE}", patience=ONCE)
    assert CANARY not in str(refused.value)


def test_names_that_only_look_like_secrets_are_taken() -> None:
    for place in ("bucket/alice@example.org/out", "bucket/10:00/out", "key:sec%2Fret@bucket/out", "k:p@ss@bucket/out"):
        open_object_store(f"s3://{place}?{NOWHERE}", "shown")
    with pytest.raises(ConfigError, match=r"write .* # as %23"):
        open_object_store(f"s3://bucket/a#b?{NOWHERE}", "shown")


def test_an_error_is_one_line_that_names_the_call_and_the_file() -> None:
    storage = open_storage(f"s3://bucket/out?{NOWHERE}&access_key_id=a&secret_access_key=b", patience=ONCE)
    with pytest.raises(StorageUnavailable, match=r"^read s3://bucket/out/file: .*HTTP error[^\n]*$"):
        storage.read("file")


def _answered(code: str, message: str) -> str:
    """What obstore makes of a refusal."""
    return (
        f"Object at location a not found: Error performing GET http://host/bucket/a?x-id={CANARY} in 1ms - Server "
        f'returned non-2xx status code: 404 Not Found: <?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}'
        f"</Code><Message>{message}</Message><StringToSign>{CANARY}</StringToSign></Error>\n\n"
        "Debug source:\nNotFound { … }"
    )


@pytest.mark.parametrize(
    ("kind", "code", "expected"),
    [
        (FileNotFoundError, "NoSuchKey", FileNotFoundError),
        (FileNotFoundError, "BlobNotFound", FileNotFoundError),
        (FileNotFoundError, "XAdminUserNotFound", StorageUnavailable),
        (PermissionError, "SignatureDoesNotMatch", StorageUnavailable),
    ],
)
def test_a_refusal_is_told_in_the_store_s_own_words(
    kind: type[OSError], code: str, expected: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise kind(_answered(code, f"No such {CANARY}2 here."))

    monkeypatch.setattr(storage_objects.obstore, "get", refuse)
    storage = ObjectStorage(MemoryStore(), "root", location="s3://bucket/root", secrets=[f"{CANARY}2"])
    with pytest.raises(expected) as raised:
        storage.read("a")
    if expected is StorageUnavailable:
        assert str(raised.value).endswith(f"404 Not Found: {code}: No such *** here")
    assert CANARY not in str(raised.value) and "\n" not in str(raised.value)


def test_what_marks_a_directory_is_no_file_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consoles make an empty object "in/", which obstore shows as "in"."""
    honest = obstore.list_with_delimiter

    def marked(store: MemoryStore, prefix: str) -> dict[str, object]:
        found = honest(store, prefix)
        marker = {**found["objects"][0], "size": 0}
        objects = [*found["objects"], marker | {"path": prefix}, marker | {"path": f"{prefix}/sub"}]
        return {"common_prefixes": [*found["common_prefixes"], f"{prefix}/empty"], "objects": objects}

    monkeypatch.setattr(storage_objects.obstore, "list_with_delimiter", marked)
    storage = ObjectStorage(MemoryStore(), "in", location="s3://bucket/in")
    storage.write("rows", b"x")
    storage.write("sub/rows", b"x")
    assert storage.list("") == ["empty", "rows", "sub"]
    assert storage.sizes("") == {"rows": 1} and list(storage.details("")) == ["rows"]


class Unwilling(http.server.BaseHTTPRequestHandler):
    """A store that is too busy for everything. It keeps connections: one that it closes behind a reply may be taken for
    the next request, which then never gets here."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.requests.append(self.command)
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("retries_max", [0, 2])
def test_a_call_sends_as_many_requests_as_the_setting_says(retries_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unwilling) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = f"endpoint=http://127.0.0.1:{server.server_port}&allow_http=true&region=us-east-1"
        place = f"s3://key:secret@bucket/x?{options}"
        storage = open_storage(place, patience=Patience(retries_max, initial_ms=1, maximum_ms=1))
        for call in (storage.read, storage.list, lambda path: storage.write(path, b"x")):
            Unwilling.requests.clear()
            with pytest.raises(StorageUnavailable, match="503"):
                call("file")
            assert len(Unwilling.requests) == retries_max + 1
        Unwilling.requests.clear()
        with monkeypatch.context() as patch, pytest.raises(StorageUnavailable, match="503"):
            patch.setattr(storage_objects.obstore, "head", lambda *_: {"size": 10, "e_tag": None})
            storage.open_input("file").read()
        assert len(Unwilling.requests) == retries_max + 1, "a range of a file, too"
        server.shutdown()


class Careless:
    """What an S3 server does that does not know conditions: it ignores them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        honest = obstore.put
        monkeypatch.setattr(
            "weir.runtime.storage.stores.objects.obstore.put",
            lambda store, path, data, **options: honest(store, path, data),
        )


def test_a_store_that_ignores_conditions_is_found_out_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ObjectStorage(MemoryStore(), "root", location="s3://careless/root")
    assert storage.creates_atomically
    Careless(monkeypatch)
    assert not storage.creates_atomically
    with pytest.raises(ConfigError, match=r"s3://careless/root.*exclusive_storage=True"):
        claimable(storage, "s3://careless/root?secret_access_key=x", exclusive=False)
    assert storage.list("") == []
    alone = claimable(storage, "s3://careless/root", exclusive=True)
    assert alone.create("claim", b"mine") and alone.create("claim", b"mine") and not alone.create("claim", b"another")
    assert alone.read("claim").to_pybytes() == b"mine" and alone.list("") == ["claim"]


def test_a_create_that_finds_its_own_content_has_succeeded() -> None:
    """The request is repeated below us when its reply is lost, and then finds what it made itself."""
    storage = ObjectStorage(MemoryStore(), "root", location="s3://bucket/root")
    storage.write("claim", b"mine")
    assert storage.create("claim", b"mine")
    assert not storage.create("claim", b"theirs")


def test_a_file_that_changes_while_it_is_read_is_an_error() -> None:
    storage = ObjectStorage(MemoryStore(), "root", location="s3://bucket/root")
    storage.write("file", b"0" * (3 << 20))
    with storage.open_input("file") as file:
        assert file.read(3) == b"000"
        storage.write("file", b"1" * (3 << 20))
        with pytest.raises(StorageUnavailable, match=r"s3://bucket/root/file.*precondition"):
            file.read(3 << 20)


def test_a_files_time_is_the_same_in_a_list_and_alone_where_the_list_is_more_exact() -> None:
    """MinIO lists milliseconds, and tells seconds in the headers of a file."""
    listed = datetime(2026, 11, 16, 20, 0, 0, 789_000, tzinfo=timezone.utc)
    alone = listed.replace(microsecond=0)
    first, second = (storage_objects._details({"size": 3, "last_modified": time}) for time in (listed, alone))  # type: ignore[typeddict-item]
    assert first == second
