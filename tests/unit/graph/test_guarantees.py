"""What a job promises is said in a line, and a source that cannot keep it is refused."""

from __future__ import annotations

from typing import Any

import pytest

import weir
from weir import connectors as io
from weir.connectors import Collection
from weir.connectors.base import SourceGuarantee
from weir.errors import ConfigError
from weir.graph.guarantees import check_at_most_once


class Repeating(Collection):
    """Reads some rows again."""

    @property
    def guarantee(self) -> SourceGuarantee:
        return "at_least_once"


def job(sink: Any, source: Any = None, **settings: Any) -> weir.Environment:
    env = weir.Environment(parallelism=1, **settings)
    env.read(source or Collection([(1,)], "n long"), uid="in").write(sink, uid="out")
    return env


def promised(env: weir.Environment) -> str:
    return env.explain().rpartition("guarantee: ")[2]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "each row counts once, until a failure ends the job"),
        ({"restart": weir.FixedDelay()}, "each row counts once: after a failure the job begins anew"),
        ({"checkpoints": weir.Checkpoints()}, "each row counts exactly once"),
        ({"checkpoints": weir.Checkpoints(mode="at_least_once")}, "each row counts at least once"),
        ({"checkpoints": weir.Checkpoints(mode="none")}, "each row counts once, until a failure ends the job"),
        (
            {
                "checkpoints": weir.Checkpoints(mode="none", on_restart="from_the_beginning"),
                "restart": weir.FixedDelay(),
            },
            "each row counts once: after a failure the job begins anew",
        ),
        (
            {"checkpoints": weir.Checkpoints(mode="none"), "restart": weir.FixedDelay()},
            "each row counts at most once: after a failure the state is lost, and sources go on behind what they have "
            "read",
        ),
    ],
)
def test_explain_says_what_a_job_guarantees(settings: dict[str, Any], said: str) -> None:
    assert promised(job(io.FileSink("out", format="jsonl"), **settings)) == said


def test_a_sink_and_a_source_that_are_weaker_are_named() -> None:
    env = job(io.Stdout(), Repeating([(1,)], "n long"), checkpoints=weir.Checkpoints())
    assert promised(env) == (
        "each row counts exactly once, at least once what comes from 'in'; 'out' may show rows again after a failure"
    )


def test_a_source_that_repeats_rows_cannot_be_read_at_most_once() -> None:
    with pytest.raises(ConfigError, match=r"source 'in' .*at most once; choose on_restart"):
        check_at_most_once(job(io.Discard(), Repeating([(1,)], "n long")).plan())
    check_at_most_once(job(io.Discard()).plan())
