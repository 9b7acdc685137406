"""A canary goes through everything that shows a location: credentials in a URI are never seen."""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import weir
from tests.unit.cli.test_jobs import weir as command
from tests.unit.runtime.driving import two_tasks
from tests.unit.runtime.job.test_handle import WITHIN_S, ObedientCluster, reach
from tests.unit.runtime.stores import store_of
from weir import connectors as io
from weir.api.overrides import Overrides
from weir.bench.checkpoint_store import StoreOptions
from weir.config import Checkpoints, JobConfig, NoRestart, Settings
from weir.errors import DataError, JobError, JobFailed, StorageUnavailable, UserCodeError, WeirError, shown
from weir.ids import AttemptId, CheckpointId, Lineage
from weir.operators.source import DriverContext
from weir.runtime.job import handle as job_module
from weir.runtime.job.asks import Ask
from weir.runtime.job.client import JobClient
from weir.runtime.job.handle import Job
from weir.runtime.job.registry import find_job
from weir.runtime.net.lines import Lines, RunLines, Secret
from weir.runtime.ports import Storage
from weir.runtime.storage.locations import location_below
from weir.runtime.storage.opening import open_storage, open_writable
from weir.runtime.storage.savepoints import origin_at
from weir.runtime.storage.stores.files import LocalStorage
from weir.runtime.storage.stores.retry import Patience
from weir.runtime.task.failures import for_driver, for_spark
from weir.runtime.task.main import TaskSpec
from weir.runtime.task.snapshots import Snapshot
from weir.snapshot.coordinator.events import CheckpointRequested
from weir.snapshot.coordinator.orders import SendTrigger
from weir.snapshot.elements import Barrier
from weir.snapshot.messages import DeployTask, TriggerCheckpoint

CANARY = "cAnArY"
URI = f"canary://AKIA{CANARY}:{CANARY}%2Fx@bucket/jobs?region=eu&secret_key={CANARY}&session_token={CANARY}"


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://key:secret@bucket/a", "s3://…@bucket/a"),
        ("s3://key:sec/ret+x@bucket/a", "s3://…@bucket/a"),
        ("s3://token@bucket/a", "s3://…@bucket/a"),
        ("s3://bucket/a?access_key=1&region=eu&secret_key=2", "s3://bucket/a?access_key=…&region=eu&secret_key=…"),
        ("abfs://box@account.dfs/a?sv=1&sig=2", "abfs://box@account.dfs/a?sv=1&sig=…"),
        ("abfss://box:key@account.dfs/a", "abfss://…@account.dfs/a"),
        ("hdfs://host:9000/a@b", "hdfs://host:9000/a@b"),
        ("s3://bucket/a@b?region=eu", "s3://bucket/a@b?region=eu"),
        ("/data/a@b?key=1", "/data/a@b?key=…"),
        ("s3://AKIA:7/wJalr@bucket/a", "s3://…@bucket/a"),
        ("s3://u:p@ss@bucket/a", "s3://…@bucket/a"),
        ("s3://u:s3cr@t/x@bucket/a?region=eu", "s3://…@bucket/a?region=eu"),
        ("s3://u:p'ss@bucket/a", "s3://…@bucket/a"),
        ("s3://u:p?ss@bucket/a", "s3://…@bucket/a"),
        ("s3://to@ken@bucket/a", "s3://…@bucket/a"),
        ("s3a+x://u:p@host", "s3a+x://…@host"),
        ("az://box/a?sas=abc&region=eu", "az://box/a?sas=…&region=eu"),
        ("s3://b/a?secret_key=a;b'c&region=eu", "s3://b/a?secret_key=…&region=eu"),
        ("s3://b/a?proxy_url=http%3A%2F%2Fu%3Apw%40h", "s3://b/a?proxy_url=http%3A%2F%2F…%40h"),
        ("s3://b/a?proxy_url=http://u:p@w@h&region=eu", "s3://b/a?proxy_url=http://…@h&region=eu"),
        ('gs://b/a?service_account_key={"id": 1, "private_key": "x"}', "gs://b/a?service_account_key=…"),
        ("location 's3://b/a?secret_key=abc': refused", "location 's3://b/a?secret_key=…': refused"),
        ("http://host:9000/a@b?x=1", "http://host:9000/a@b?x=1"),
        ("write s3://a:b@c/x: 's3://d:e@f' (x@y)", "write s3://…@c/x: 's3://…@f' (x@y)"),
    ],
)
def test_a_location_is_shown_without_what_opens_it(location: str, expected: str) -> None:
    assert shown(location) == expected == shown(shown(location))


def test_every_error_of_weir_hides_them_and_survives_pickling() -> None:
    for error in (WeirError(URI), JobFailed(f"job failed: {URI}"), StorageUnavailable(URI)):
        for text in (str(error), repr(error), str(pickle.loads(pickle.dumps(error)))):
            assert CANARY not in text and "bucket/jobs" in text


def test_what_describes_a_job_hides_them() -> None:
    checkpoints = Checkpoints(to=URI)
    env = weir.Environment(checkpoints=checkpoints)
    source, sink = io.Files(URI, schema="n long", format="jsonl"), io.FileSink(URI, "jsonl")
    env.read(source, uid="in").write(sink, uid="out")
    spec = TaskSpec(
        "job", two_tasks(), Lineage("l"), AttemptId(1), "exactly_once", Settings(), "a", Lines(Secret("t")), URI
    )
    config = JobConfig("job", checkpoints, from_savepoint=URI)
    texts = [repr(each) for each in (checkpoints, env, source, sink, io.Collect(URI), config, spec)]
    texts += [env.explain(), env.explain("mermaid"), f"{RunLines.new(Settings(tls=True), 'elsewhere')}"]
    assert [text for text in texts if CANARY in text or "PRIVATE" in text] == []
    assert "bucket" in texts[0] and "every" in texts[0]


def test_what_carries_a_location_does_not_show_it() -> None:
    attempt, checkpoint = AttemptId(1), CheckpointId(1)
    carriers = [
        origin_at(URI),
        Overrides(checkpoints_to=URI, from_savepoint=URI, at=URI),
        Ask("the savepoint", lambda: None, savepoint=URI),
        Barrier(checkpoint, URI),
        Snapshot(checkpoint, {}, None, 0.0, savepoint=URI),
        DriverContext(None, "in", 1, 1, URI, resume=False),
        StoreOptions(URI),
        DeployTask(attempt, (), checkpoint, URI),
        TriggerCheckpoint(attempt, checkpoint, URI),
        CheckpointRequested(URI),
        SendTrigger(checkpoint, URI),
    ]
    assert [text for text in map(repr, carriers) if CANARY in text] == []


@pytest.mark.parametrize(
    "location",
    [
        URI.replace("canary:", "s3:").replace("?region=eu", "?regoin=eu"),
        f"s3://AKIA:{CANARY}/raw/{CANARY}@bucket/x",
        f"nonsense://k:{CANARY}@bucket",
        f"hdfs://user:{CANARY}@nowhere:1/x",
    ],
)
def test_a_location_that_cannot_be_opened_is_named_without_them(location: str) -> None:
    with pytest.raises(WeirError) as caught:
        open_writable(location, "Checkpoints.to", partial(open_storage, patience=Patience(retries_max=0)))
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_what_a_task_says_of_a_failure_hides_them() -> None:
    try:
        raise OSError(f"PUT {URI} failed")
    except OSError as error:
        for show_rows in (True, False):
            assert CANARY not in for_driver(error, show_rows=show_rows)
        assert CANARY not in str(for_spark(error, "task 1"))


# --- A job that runs there ------------------------------------------------------------------------------------


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, eventually: Callable[..., Any]) -> Iterator[Job]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(job_module, "SparkCluster", ObedientCluster)

    def opener(uri: str, create: bool = True) -> Storage:
        """For locations of which nobody may see the end."""
        return LocalStorage(str(tmp_path / _name(uri)), create=create)

    monkeypatch.setattr(ObedientCluster, "opener", staticmethod(opener))
    config = JobConfig("words", Checkpoints(every=None, to=URI), NoRestart(), Settings())
    place = location_below(URI, "words")
    made = Job(
        two_tasks(),
        config,
        run="0123456789",
        session=None,
        store=store_of(opener(place), job="words"),
        opener=opener,
        storage_uri=place,
    )  # type: ignore[arg-type]
    made.start()
    reach(made, "running", eventually)
    yield made
    made.cancel()


def _name(uri: str) -> str:
    return uri.partition("?")[0].rpartition("@")[2]


def test_neither_status_nor_commands_nor_files_nor_logs_of_a_job_show_them(
    job: Job, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        client = JobClient(find_job("words"))
        assert CANARY in job.savepoint(URI, WITHIN_S), "whoever asks the job itself gets what opens it"
        ObedientCluster.latest.export_error = f"cannot write {URI}"
        with pytest.raises(JobError) as caught:
            client.savepoint(URI, WITHIN_S)
        ObedientCluster.latest.export_error = None
        said = [str(caught.value), *(repr(command(*words)) for words in COMMANDS), repr(client.entry)]
        said += [repr(job.checkpoints()), repr(job.checkpoint_history())]
        said += [repr(client.status()), repr(client.checkpoints()), repr(client.metrics())]
        job.cancel()
        said.append(repr(command("status", "words")))
    assert [text for text in (*said, caplog.text) if CANARY in text] == []
    assert any("bucket" in text for text in said)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "manifest.json" for path in files)
    assert [path for path in files if CANARY.encode() in path.read_bytes() or CANARY in str(path)] == []


COMMANDS = (
    ("list", "--json"),
    ("status", "words"),
    ("status", "words", "--json"),
    ("checkpoints", "words", "--json"),
    ("savepoint", "words", URI),
    ("savepoint", "words", URI, "--json"),
    ("checkpoints", "words"),
)


# --- Rows in errors -------------------------------------------------------------------------------------------


def test_rows_in_errors_can_be_hidden_and_never_reach_spark() -> None:
    from weir.testing import collect_local

    def fail(row: Any) -> Any:
        raise ValueError(f"no such customer: {row.name}")

    env = weir.Environment()
    stream = env.from_collection([(CANARY,)], "name string", uid="in").map(fail, "name string", uid="lookup")
    with pytest.raises(UserCodeError) as caught:
        collect_local(stream)
    error = caught.value
    assert CANARY in for_driver(error, show_rows=True)
    hidden = for_driver(error, show_rows=False)
    assert CANARY not in hidden and "lookup" in hidden and "ValueError" in hidden and "show_rows" in hidden
    assert 'raise ValueError(f"no such customer: {row.name}")' in hidden, "the user's own line of code"
    told = str(for_spark(error, "task 1"))
    assert CANARY not in told and "task 1 failed (USER_CODE)" in told


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        (lambda stream: stream.map(lambda row: row.name, "n long", uid="lookup"), "field 'n' is declared bigint"),
        (lambda stream: stream.map(lambda row: (row.name, 1), "n string", uid="lookup"), "not a row of (n string)"),
        (lambda stream: stream.map(lambda row: {row.name: 1}, "n string", uid="lookup"), "not a row of (n string)"),
        (
            lambda stream: stream.key_by("name").reduce(lambda a, b: {"name": 1, "other": CANARY}, uid="lookup"),
            "not a row of (name string)",
        ),
        (
            lambda stream: stream.map_batches(
                lambda frame: frame.astype(object), "name long", kind="pandas", uid="lookup"
            ),
            "expected a result with (name bigint)",
        ),
        (lambda stream: stream.select(n=pl.col("name").cast(pl.Int64), uid="lookup"), "lookup"),
    ],
)
def test_rows_in_errors_about_results_are_hidden_too(fail: Callable[[Any], Any], expected: str) -> None:
    from weir.testing import collect_local

    stream = weir.Environment().from_collection([(CANARY,), (CANARY,)], "name string", uid="in")
    with pytest.raises(WeirError) as caught:
        collect_local(fail(stream))
    assert CANARY in for_driver(caught.value, show_rows=True)
    hidden = for_driver(caught.value, show_rows=False)
    assert CANARY not in hidden and "lookup" in hidden and expected in hidden and "show_rows" in hidden


def test_what_a_generator_has_made_is_hidden_too() -> None:
    from weir.testing import collect_local

    stream = weir.Environment().generate(1, lambda numbers: {"name": [CANARY]}, "name long", uid="made")
    with pytest.raises(WeirError) as caught:
        collect_local(stream)
    assert CANARY in for_driver(caught.value, show_rows=True)
    hidden = for_driver(caught.value, show_rows=False)
    assert CANARY not in hidden and "does not fit its schema (name bigint)" in hidden and "show_rows" in hidden


def test_an_error_of_which_nobody_knows_whether_it_holds_rows_is_told_by_its_kind_and_its_lines() -> None:
    try:
        raise DataError(f"bad: {CANARY}")
    except DataError as error:
        hidden = for_driver(error, show_rows=False)
    assert CANARY not in hidden.replace("{CANARY}", "") and "DataError" in hidden and "line" in hidden


def test_values_in_errors_of_libraries_are_hidden_too() -> None:
    try:
        pa.array([CANARY]).cast(pa.int64())
    except pa.ArrowInvalid as error:
        assert CANARY in for_driver(error, show_rows=True)
        hidden = for_driver(error, show_rows=False)
        assert CANARY not in hidden and "ArrowInvalid" in hidden and "line" in hidden
        assert CANARY not in str(for_spark(error, "task 1"))


def test_errors_that_hold_no_rows_are_told_whole() -> None:
    error = StorageUnavailable("write out/a: no such bucket")
    assert for_driver(error, show_rows=False) == str(error)
    assert for_spark(error, "task 1") is error
    interrupted = KeyboardInterrupt()
    assert for_spark(interrupted, "task 1") is interrupted
