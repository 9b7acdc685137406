"""Random jobs: topologies, sources, sinks and settings, all drawn from the seed."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.sim.at_most_once import perhaps_at_most_once
from tests.sim.externals import SCHEMA, External, Row, SimFileSink, SimSink, SimSource, make_rows, to_batch
from tests.sim.kinds import draw_kind
from tests.sim.storage import SCHEME
from tests.sim.timed import OTHER, TIMES, Timed, draw_timed
from tests.sim.workload import ENDS, FIRST_PLACE, STEPS, Job
from weir.config import Checkpoints, Mode, RocksDb, Settings
from weir.connectors import Collection, Generator
from weir.operators.sink import Sink
from weir.operators.source import Source

LOOP_MEMORY: tuple[int | str, ...] = (0, 200, "64MB")
_EXACTLY_ONCE: Mode = "exactly_once"
MODES: tuple[Mode, ...] = (*[_EXACTLY_ONCE] * 10, "at_least_once", "at_least_once", "none")

ON_DISK = 0.2
DISK_MEMORY = ("1KB", "20KB", "1MB")

OTHER_KINDS = 0.3
"""How many regions of event time keep rows of windows, or state of every kind."""

BUSY_PACE = 0.4
"""How fast jobs read that are to take many checkpoints."""

BUSY_EVERY, BUSY_AT = 4, 2
"""Which seeds are of small jobs with many checkpoints."""

LOOPED_EVERY, LOOPED_AT = 6, 3
"""Which seeds have a loop; the others are the runs that they ever were."""


def drawn_job(rng: random.Random, seed: int, external: External, *, region_rng: random.Random) -> Job:
    """That of a seed."""
    # What is beside the first region is drawn from numbers of its own, so that most jobs are what they ever were.
    time_rng = random.Random(f"time of {seed}")
    if seed % BUSY_EVERY == BUSY_AT:
        return on_disk(draw_busy_job(rng, external, time_rng=time_rng), random.Random(f"disks of {seed}"))
    job = with_regions(draw_job(rng, external), region_rng, external, time_rng=time_rng)
    if seed % LOOPED_EVERY == LOOPED_AT:
        job = with_loop(job, random.Random(f"loops of {seed}"), external)
    job = on_disk(job, random.Random(f"disks of {seed}"))
    return perhaps_at_most_once(job, random.Random(f"at most once of {seed}"), external)


def draw_job(rng: random.Random, external: External) -> Job:
    """One to three sources, perhaps a union, some steps, one or two ends."""
    tiny = rng.random() < 0.06
    sources = [_draw_source(rng, i, tiny=tiny) for i in range(rng.randint(1, 3))]
    steps = [make(rng) for probability, make in STEPS if rng.random() < probability]
    ends = [(end, _draw_sink(rng, end, external)) for end in rng.sample(list(ENDS), rng.choice([1, 1, 2]))]
    settings = Settings(
        max_parallelism=rng.choice([4, 16, 128]),
        channel_batches_max=rng.choice([1, 2, 8]),
        batch_rows_max=rng.choice([1, 4, 64]),
        buffer_timeout=rng.choice(["0ms", "3ms"]),
        watermark_interval="1ms",
        heartbeat_interval="10ms",
        heartbeat_timeout="160ms",
        launch_timeout="800ms",
        restore_timeout="900ms",
        stop_timeout="100ms",
        snapshot_threads=rng.choice([1, 2, 2, 4]),
        commit_retries_max=3,
        commit_retry_delay="1ms",
        commit_retry_delay_max="4ms",
        outage_retry_delay="5ms",
        outage_retry_delay_max="5ms",
    )
    return Job(steps, sources, ends, draw_checkpoints(rng), settings)


def draw_busy_job(rng: random.Random, external: External, *, time_rng: random.Random) -> Job:
    """A small job that takes one checkpoint after the other, with more of them under way than are kept: what it has in
    storage changes all the time."""
    job = draw_job(rng, external)
    timed = _draw_of_time(time_rng) if rng.random() < 0.5 else None
    if timed is None:
        source = SimSource(rng, 0, rng.randint(30, 60), rng.randint(1, 2), pace=BUSY_PACE)
        sources: list[tuple[Source, list[Row]]] = [(source, make_rows(0, source.per_split * source.splits))]
    else:
        sources = [_draw_timed_source(rng, OTHER * i, pace=BUSY_PACE) for i in range(timed.sources)]
    end = rng.choice(["agg", "agg", "process", "batches"]) if timed is None else "timed"
    checkpoints = Checkpoints(
        every=rng.choice(["1ms", "2ms"]),
        timeout="1s",
        max_concurrent=rng.choice([1, 2, 4, 4]),
        tolerable_failures=rng.choice([2, 100]),
        retain=rng.choice([1, 1, 2]),
    )
    ends = [(end, _draw_sink(rng, end, external))]
    return replace(job, steps=[], sources=sources, ends=ends, checkpoints=checkpoints, timed=timed, parallelism_max=2)


def with_regions(job: Job, rng: random.Random, external: External, *, time_rng: random.Random) -> Job:
    """The same job, perhaps with another region or two beside it; `time_rng` says what they do in event time."""
    for number in range(rng.choice([0, 0, 0, 1, 1, 2])):
        sources = [_draw_source(rng, 10 * (number + 1), tiny=rng.random() < 0.1)]
        steps = [make(rng) for probability, make in STEPS[:3] if rng.random() < probability]
        prefix = f"region-{number + 1}-"
        end, timed = rng.choice([*ENDS, *["timed"] * 3]), None
        if end == "timed":
            timed, first = _draw_of_time(time_rng), 100_000 * (number + 1)
            sources, steps = [_draw_timed_source(rng, first)], []
            sources += [_draw_timed_source(time_rng, first + OTHER) for _ in range(timed.sources - 1)]
        ends = [(end, _draw_sink(rng, f"{prefix}{end}", external))]
        other = Job(steps, sources, ends, job.checkpoints, job.settings, prefix=prefix, beside=job.beside, timed=timed)
        job = replace(job, beside=other)
    return job


def with_loop(job: Job, rng: random.Random, external: External) -> Job:
    """The same job with a loop beside it."""
    sources = [_draw_source(rng, 50 + i, tiny=rng.random() < 0.1) for i in range(rng.randint(1, 2))]
    steps = [make(rng) for probability, make in STEPS[:3] if rng.random() < probability]
    ends = [("loop", _draw_sink(rng, "loop-loop", external))]
    settings = replace(job.settings, loop_memory_max=rng.choice(LOOP_MEMORY))
    other = Job(steps, sources, ends, job.checkpoints, settings, prefix="loop-", beside=job.beside)
    return replace(job, beside=other, settings=settings)


def on_disk(job: Job, rng: random.Random) -> Job:
    """The same job, perhaps with its state on disk, and more or less of it in memory."""
    if rng.random() >= ON_DISK:
        return job
    backend = RocksDb(memory_max=rng.choice(DISK_MEMORY))

    def moved(job: Job) -> Job:
        beside = None if job.beside is None else moved(job.beside)
        return replace(job, settings=replace(job.settings, backend=backend), beside=beside)

    return moved(job)


def _draw_of_time(rng: random.Random) -> Timed:
    """What a region does in event time."""
    return draw_kind(rng) if rng.random() < OTHER_KINDS else draw_timed(rng)


def _draw_source(rng: random.Random, index: int, *, tiny: bool) -> tuple[Source, list[Row]]:
    first, per_split, splits = 10_000 * index, rng.randint(2, 25), rng.randint(1, 4)
    if tiny or rng.random() < 0.05:
        per_split, splits = rng.choice([(0, 2), (5, 0), (1, 1)])
    rows = make_rows(first, per_split * splits)
    kind = rng.choice(["simulated", "simulated", "simulated", "collection", "generator"])
    if kind == "collection":
        return Collection(rows, SCHEMA), rows
    if kind == "generator":
        return Generator(len(rows), lambda n: to_batch([rows[i] for i in n.tolist()]), SCHEMA), rows
    return SimSource(rng, first, per_split, splits), rows


def _draw_timed_source(rng: random.Random, first: int, *, pace: float = 1.0) -> tuple[Source, list[Row]]:
    per_split, splits = rng.randint(5, 25), rng.randint(1, 4)
    if pace < 1.0:
        per_split, splits = rng.randint(25, 50), 1
    source = SimSource(rng, first, per_split, splits, stride=TIMES, pace=pace)
    return source, [row for split in range(splits) for row in make_rows(source.first + TIMES * split, per_split)]


def _draw_sink(rng: random.Random, end: str, external: External) -> Sink:
    if rng.random() < 0.5:
        return SimSink(external)
    format = rng.choice(["jsonl", "csv", "parquet", "arrow"])
    place = f"{SCHEME}://{FIRST_PLACE}/out/{end}"
    return SimFileSink(external, place, format, roll_rows=rng.choice([3, 1_000]))  # type: ignore[arg-type]


def draw_checkpoints(rng: random.Random) -> Checkpoints:
    # A time-out that a checkpoint cannot meet makes the job restart for ever: short ones only where many are tolerated.
    tolerable_failures = rng.choice([0, 2, 100])
    drawn = Checkpoints(
        every=rng.choice(["1ms", "3ms", "3ms", "8ms", "8ms", "25ms", "80ms", None]),
        timeout=rng.choice(["20ms", "50ms", "1s"] if tolerable_failures == 100 else ["1s", "5s"]),
        min_pause=rng.choice(["0ms", "0ms", "3ms"]),
        max_concurrent=rng.choice([1, 1, 2, 4]),
        tolerable_failures=tolerable_failures,
        retain=rng.choice([1, 2, 3]),
        mode=rng.choice(MODES),
    )
    return replace(drawn, on_restart="from_the_beginning") if drawn.mode == "none" else drawn
