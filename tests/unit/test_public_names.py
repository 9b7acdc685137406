"""The public face: each name once, signatures as documented, and nothing heavy at import.

A change here is a change for users: it belongs into the changelog.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import weir
from weir.version import __version__

NAMES = {
    "Aggregate",
    "AggregatingState",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "ByKey",
    "Checkpoints",
    "CoProcessFunction",
    "ConnectedStreams",
    "CoGroupedStreams",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "bounded_disorder",
    "monotonic",
    "watermarks_by",
    "Environment",
    "ExponentialDelay",
    "FailureRate",
    "FixedDelay",
    "Heap",
    "JobHandle",
    "JobResult",
    "KeyedBatchFunction",
    "KeyedConnectedStreams",
    "KeyedStream",
    "ListState",
    "MapState",
    "NoRestart",
    "OperatorListState",
    "Pickled",
    "ProcessFunction",
    "ReducingState",
    "Retry",
    "RocksDb",
    "Settings",
    "Stream",
    "Trigger",
    "Ttl",
    "ValueState",
    "Window",
    "WindowState",
    "WindowedStream",
    "__version__",
    "aggregate",
    "avg",
    "continuous",
    "count",
    "count_window",
    "errors",
    "first",
    "global_window",
    "last",
    "max",
    "min",
    "on_count",
    "on_processing_time",
    "on_watermark",
    "per_window",
    "session",
    "sliding",
    "state",
    "sum",
    "top",
    "tumbling",
}

OPTIONS = "uid: 'str | None' = None, name: 'str | None' = None, parallelism: 'int | None' = None"
WATERMARK = "watermark: 'WatermarkStrategy | None' = None"
SCHEMA = "schema: 'pa.Schema | str'"
SIDES = "sides: 'Mapping[str, pa.Schema | str] | None' = None"
STATE = "state: 'Mapping[str, StateDescriptor] | None' = None"
CALLS = (
    "ordered: 'bool' = True, capacity: 'int' = 100, timeout: 'Duration' = '10s', retry: 'Retry | int | None' = None,"
    " failed: 'str | None' = None"
)
OTHER = "other: 'KeyedStream'"
SUFFIX = "suffix: 'str' = '_right'"
LATE = "late_left: 'str | None' = None, late_right: 'str | None' = None"
STARTING = (
    "resume: 'bool' = False, at: 'str | None' = None, from_savepoint: 'str | None' = None, "
    "allow_dropped_state: 'bool' = False"
)

SIGNATURES = {
    "Environment": (
        "(spark: 'SparkSession | None' = None, *, parallelism: 'int | None' = None,"
        " checkpoints: 'Checkpoints | None' = None, restart: 'Restart | None' = None,"
        " settings: 'Settings | None' = None, backend: 'Backend | None' = None,"
        " name: 'str' = 'weir-job') -> 'None'"
    ),
    "Environment.read": f"(self, source: 'Source', *, {WATERMARK}, {OPTIONS}) -> 'Stream'",
    "Environment.from_collection": (
        f"(self, rows: 'Iterable[Any]', schema: 'pa.Schema | str | None' = None, *, {WATERMARK}, {OPTIONS}) -> 'Stream'"
    ),
    "Environment.generate": (
        f"(self, count: 'int | None', make: 'Callable[[Any], Any]', schema: 'pa.Schema | str',"
        f" *, rate: 'float | None' = None, {WATERMARK}, {OPTIONS}) -> 'Stream'"
    ),
    "Environment.from_dataframe": f"(self, dataframe: 'DataFrame', *, {WATERMARK}, {OPTIONS}) -> 'Stream'",
    "Environment.plan": "(self) -> 'Plan'",
    "Environment.explain": "(self, format: 'Format' = 'text') -> 'str'",
    "Environment.run": (
        f"(self, name: 'str | None' = None, *, {STARTING}, progress: 'Progress' = None) -> 'JobResult'"
    ),
    "Environment.submit": f"(self, name: 'str | None' = None, *, {STARTING}) -> 'JobHandle'",
    "Stream.side": "(self, tag: 'str') -> 'Stream'",
    "Stream.with_processing_time": f"(self, column: 'str' = 'processing_time', *, {OPTIONS}) -> 'Stream'",
    "Stream.with_watermarks": f"(self, strategy: 'WatermarkStrategy', *, {OPTIONS}) -> 'Stream'",
    "Stream.select": f"(self, *expressions: 'pl.Expr | str', {OPTIONS}, **named: 'Any') -> 'Stream'",
    "Stream.with_columns": f"(self, *expressions: 'pl.Expr | str', {OPTIONS}, **named: 'Any') -> 'Stream'",
    "Stream.filter": f"(self, condition: 'pl.Expr | Callable[[Any], bool]', *, {OPTIONS}) -> 'Stream'",
    "Stream.iterate": f"(self, step: 'Callable[[Stream], tuple[Stream, Stream]]', *, {OPTIONS}) -> 'Stream'",
    "Stream.map_batches": (
        "(self, function: 'Callable[[Any], Any]', schema: 'pa.Schema | str | None' = None,"
        f" kind: 'BatchKind' = 'arrow', *, {OPTIONS}) -> 'Stream'"
    ),
    "Stream.map": f"(self, function: 'Callable[[Any], Any]', {SCHEMA}, *, {OPTIONS}) -> 'Stream'",
    "Stream.flat_map": f"(self, function: 'Callable[[Any], Any]', {SCHEMA}, *, {OPTIONS}) -> 'Stream'",
    "Stream.map_async": (
        f"(self, function: 'Callable[[Any], Awaitable[Any]]', {SCHEMA}, *, {CALLS}, {OPTIONS}) -> 'Stream'"
    ),
    "Stream.connect": "(self, other: 'Stream') -> 'ConnectedStreams'",
    "Stream.key_by": "(self, *columns: 'str') -> 'KeyedStream'",
    "Stream.union": "(self, *others: 'Stream') -> 'Stream'",
    "Stream.rebalance": "(self) -> 'Stream'",
    "Stream.broadcast": "(self) -> 'Stream'",
    "Stream.window": (
        "(self, windows: 'Windows', *, lateness: 'Duration' = 0, late: 'str | None' = None,"
        " trigger: 'Trigger | None' = None) -> 'WindowedStream'"
    ),
    "Stream.write": f"(self, sink: 'Sink', *, {OPTIONS}) -> 'None'",
    "Stream.print": f"(self, *, {OPTIONS}) -> 'None'",
    "Stream.collect": "(self, path: 'str | None' = None) -> 'pa.Table'",
    "Stream.to_dataframe": "(self, path: 'str | None' = None) -> 'DataFrame'",
    "Stream.explain": "(self, format: 'Format' = 'text') -> 'str'",
    "KeyedStream.agg": (
        "(self, aggregates: 'Mapping[str, Aggregate] | None' = None, /, *,"
        f" {OPTIONS}, **named: 'Aggregate') -> 'Stream'"
    ),
    "KeyedStream.interval_join": (
        f"(self, {OTHER}, *, lower: 'Duration', upper: 'Duration', how: 'How' = 'inner', {SUFFIX},"
        f" time: 'str' = 'join_time', {LATE}, {OPTIONS}) -> 'Stream'"
    ),
    "KeyedStream.join": (
        f"(self, {OTHER}, windows: 'TimeWindows', *, how: 'How' = 'inner', {SUFFIX},"
        f" lateness: 'Duration' = 0, {LATE}, {OPTIONS}) -> 'Stream'"
    ),
    "KeyedStream.co_group": (
        f"(self, {OTHER}, windows: 'TimeWindows', *, lateness: 'Duration' = 0, {LATE}) -> 'joined.CoGroupedStreams'"
    ),
    "KeyedStream.as_of": (
        f"(self, {OTHER}, *, how: 'How' = 'left', {SUFFIX}, late: 'str | None' = None, {OPTIONS}) -> 'Stream'"
    ),
    "CoGroupedStreams.apply": (f"(self, function: 'Callable[..., Any]', {SCHEMA}, *, {STATE}, {OPTIONS}) -> 'Stream'"),
    "KeyedStream.window": (
        "(self, windows: 'Windows', *, lateness: 'Duration' = 0, late: 'str | None' = None,"
        " trigger: 'Trigger | None' = None) -> 'WindowedStream'"
    ),
    "KeyedStream.count": f"(self, column: 'str' = 'count', *, {OPTIONS}) -> 'Stream'",
    "KeyedStream.sum": f"(self, *columns: 'str', {OPTIONS}) -> 'Stream'",
    "KeyedStream.map": f"(self, function: 'Callable[..., Any]', {SCHEMA}, *, {STATE}, {OPTIONS}) -> 'Stream'",
    "KeyedStream.flat_map": (
        f"(self, function: 'Callable[..., Iterable[Any]]', {SCHEMA}, *, {STATE}, {OPTIONS}) -> 'Stream'"
    ),
    "KeyedStream.filter": f"(self, condition: 'Callable[..., bool]', *, {STATE}, {OPTIONS}) -> 'Stream'",
    "KeyedStream.map_async": (
        f"(self, function: 'Callable[..., Awaitable[Any]]', {SCHEMA}, *, {STATE}, {CALLS}, {OPTIONS}) -> 'Stream'"
    ),
    "KeyedStream.reduce": f"(self, function: 'Callable[..., Any]', *, {STATE}, {OPTIONS}) -> 'Stream'",
    "KeyedStream.process": (
        f"(self, function: 'ProcessFunction | Callable[[Any, Any], Any]', {SCHEMA}, *,"
        f" {STATE}, {SIDES}, {OPTIONS}) -> 'Stream'"
    ),
    "KeyedStream.process_batches": (
        f"(self, function: 'KeyedBatchFunction | Callable[[Any, Any], Any]', {SCHEMA}, *,"
        f" {STATE}, kind: 'BatchKind' = 'polars', {OPTIONS}) -> 'Stream'"
    ),
    "KeyedStream.connect": (
        "(self, other: 'KeyedStream | Stream') -> 'KeyedConnectedStreams | BroadcastConnectedStream'"
    ),
    "ConnectedStreams.key_by": (
        "(self, left: 'str | Sequence[str]', right: 'str | Sequence[str] | None' = None) -> 'KeyedConnectedStreams'"
    ),
    "KeyedConnectedStreams.process": (
        f"(self, function: 'CoProcessFunction', {SCHEMA}, *, {SIDES}, {OPTIONS}) -> 'Stream'"
    ),
    "BroadcastConnectedStream.process": (
        f"(self, function: 'BroadcastProcessFunction', {SCHEMA}, *, {SIDES}, {OPTIONS}) -> 'Stream'"
    ),
    "JobHandle.wait": "(self, timeout: 'float | None' = None) -> 'str'",
    "JobHandle.cancel": "(self) -> 'None'",
    "JobHandle.trigger_checkpoint": "(self, timeout: 'float | None' = 60.0) -> 'int'",
    "JobHandle.savepoint": "(self, directory: 'str | None' = None, timeout: 'float | None' = 600.0) -> 'str'",
    "JobHandle.stop": (
        "(self, savepoint: 'str | bool' = True, drain: 'bool' = False, timeout: 'float | None' = 600.0) -> 'str | None'"
    ),
    "JobHandle.rescale": "(self, parallelism: 'int', timeout: 'float | None' = 600.0) -> 'None'",
    "JobHandle.checkpoints": "(self) -> 'Sequence[CheckpointRecord]'",
    "JobHandle.metrics": "(self) -> 'Mapping[str, Any]'",
}

PROPERTIES = {
    "Environment": {"parallelism", "spark"},
    "Stream": {"columns", "schema", "time_column"},
    "KeyedStream": {"keys", "schema"},
    "ConnectedStreams": set(),
    "KeyedConnectedStreams": set(),
    "BroadcastConnectedStream": set(),
    "JobHandle": {"error", "failures", "name", "status"},
}


def test_the_public_names_are_these_and_each_is_listed_once() -> None:
    assert len(weir.__all__) == len(set(weir.__all__))
    assert set(weir.__all__) == NAMES
    assert all(hasattr(weir, name) for name in NAMES)


def test_no_other_name_slips_out_beside_our_own_modules() -> None:
    package = Path(weir.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    visible = {name for name in vars(weir) if not name.startswith("__")}
    assert visible - NAMES <= modules


def test_the_version_is_that_of_the_package() -> None:
    assert weir.__version__ == __version__ == "0.2.0"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_stay_as_they_are_documented(name: str) -> None:
    found: object = weir
    for part in name.split("."):
        found = getattr(found, part)
    assert str(inspect.signature(found)) == SIGNATURES[name]  # type: ignore[arg-type]


def members_of(kind: type) -> dict[str, object]:
    """What it has from us, be it from a class that it builds on."""
    ours = [each for each in kind.__mro__ if each.__module__.split(".")[0] == "weir"]
    return {member: value for each in reversed(ours) for member, value in vars(each).items()}


@pytest.mark.parametrize("name", PROPERTIES)
def test_every_public_method_and_property_of_what_users_hold_is_pinned(name: str) -> None:
    members = {member for member in members_of(getattr(weir, name)) if not member.startswith("_")}
    pinned = {key.removeprefix(f"{name}.") for key in SIGNATURES if key.startswith(f"{name}.")}
    assert members == pinned | PROPERTIES[name]


@pytest.mark.parametrize("name", ["Environment", "Stream", "KeyedStream"])
def test_every_operator_takes_uid_name_and_parallelism_by_keyword(name: str) -> None:
    for member, function in members_of(getattr(weir, name)).items():
        if member.startswith("_") or not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        if "uid" in parameters:
            for option in ("uid", "name", "parallelism"):
                assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY, f"{member}: {option}"
                assert parameters[option].default is None


def test_importing_weir_imports_neither_pyspark_nor_pandas() -> None:
    code = "import sys, weir, weir.connectors; print(sorted({'pyspark', 'pandas', 'py4j'} & set(sys.modules)))"
    source = str(Path(weir.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
