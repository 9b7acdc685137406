"""Environments: defaults, plans, and what a job is started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import weir
from tests.unit.api.fakes import FakeHandle, FakeLauncher
from weir import connectors
from weir.api.overrides import overriding
from weir.config import JobConfig
from weir.errors import JobFailed, PlanError


def small_job(**settings: Any) -> weir.Environment:
    env = weir.Environment(**settings)
    env.from_collection([(1,)], "n long", uid="in").write(connectors.Discard(), uid="out")
    return env


# --- Defaults -----------------------------------------------------------------------------------------


def test_the_default_parallelism_is_small_and_never_above_the_key_groups() -> None:
    assert 1 <= weir.Environment().parallelism <= 4
    assert weir.Environment(settings=weir.Settings(max_parallelism=1)).parallelism == 1
    assert weir.Environment(parallelism=7).parallelism == 7


@pytest.mark.parametrize("parallelism", [0, "2", 1.0])
def test_a_parallelism_that_is_no_positive_whole_number_is_refused(parallelism: Any) -> None:
    with pytest.raises(PlanError, match="whole number"):
        weir.Environment(parallelism=parallelism)


@pytest.mark.parametrize(
    ("checkpoints", "restart"),
    [
        (None, weir.NoRestart()),
        (weir.Checkpoints(mode="none"), weir.NoRestart()),
        (weir.Checkpoints(), weir.ExponentialDelay()),
        (weir.Checkpoints(to="somewhere"), weir.ExponentialDelay()),
    ],
)
def test_a_job_restarts_by_default_when_it_has_checkpoints(
    launcher: FakeLauncher, checkpoints: weir.Checkpoints | None, restart: object
) -> None:
    small_job(checkpoints=checkpoints).submit()
    assert launcher.config.restart == restart


def test_a_restart_strategy_that_was_given_holds(launcher: FakeLauncher) -> None:
    small_job(restart=weir.FixedDelay(attempts=2)).submit()
    assert launcher.config.restart == weir.FixedDelay(attempts=2)


# --- Sources and plans --------------------------------------------------------------------------------


def test_read_takes_sources_only() -> None:
    with pytest.raises(PlanError, match="not a source"):
        weir.Environment().read("bids/")  # type: ignore[arg-type]


def test_a_job_without_a_sink_is_told_to_write() -> None:
    env = weir.Environment()
    env.from_collection([(1,)], "n long")
    with pytest.raises(PlanError, match="write"):
        env.plan()


def test_the_command_lines_parallelism_wins_over_the_scripts() -> None:
    env = small_job(parallelism=2)
    with overriding(parallelism=3):
        assert env.plan().parallelism == 3
    assert env.plan().parallelism == 2


def test_operators_keep_their_own_parallelism_when_the_default_is_overridden() -> None:
    env = weir.Environment(parallelism=2)
    env.from_collection([(1,)], "n long", parallelism=1).write(connectors.Discard())
    with overriding(parallelism=3):
        assert [vertex.parallelism for vertex in env.plan().vertices] == [1, 3]


# --- Runs ---------------------------------------------------------------------------------------------


def test_submit_hands_over_plan_settings_and_session_and_returns_the_handle(launcher: FakeLauncher) -> None:
    session: Any = object()
    settings = weir.Settings(batch_rows_max=10)
    checkpoints = weir.Checkpoints(every="1s", to="here")
    env = small_job(spark=session, parallelism=2, settings=settings, checkpoints=checkpoints)
    assert env.submit("words", resume=True) is launcher.handle
    assert launcher.plan == env.plan()
    assert launcher.session is session
    assert launcher.config == JobConfig("words", checkpoints, weir.ExponentialDelay(), settings, resume=True)


def test_a_job_is_called_like_its_environment_unless_it_is_given_a_name(launcher: FakeLauncher) -> None:
    env = small_job(name="nightly")
    env.submit()
    assert launcher.config.name == "nightly"
    env.run("other")
    assert launcher.config.name == "other"


def test_run_waits_for_the_end_and_says_how_it_went(launcher: FakeLauncher) -> None:
    seen: list[str] = []
    result = small_job().run("words", progress=lambda handle: seen.append(handle.status))
    assert seen == ["created", "running", "finished"]
    assert (result.name, result.status) == ("job", "finished")
    assert [checkpoint.id for checkpoint in result.checkpoints] == [7]
    assert result.metrics["operators"][0]["rows_out"] > 0
    assert result.seconds >= 0


def test_run_raises_what_the_job_failed_with(launcher: FakeLauncher) -> None:
    launcher.handle = FakeHandle(["running", "failed"], error=JobFailed("the disk is full"))
    with pytest.raises(JobFailed, match="disk is full"):
        small_job().run(progress=False)


def test_the_command_lines_options_win_over_the_scripts(launcher: FakeLauncher, tmp_path: Path) -> None:
    seen: list[str] = []
    env = small_job(checkpoints=weir.Checkpoints(every="1s"))
    with overriding(resume=True, checkpoints_to=str(tmp_path), progress=lambda handle: seen.append(handle.status)):
        env.run(progress=False)
    assert launcher.config.resume
    assert launcher.config.checkpoints == weir.Checkpoints(every="1s", to=str(tmp_path))
    assert seen[-1] == "finished"


def test_a_checkpoint_location_from_the_command_line_lets_the_job_restart(
    launcher: FakeLauncher, tmp_path: Path
) -> None:
    with overriding(checkpoints_to=str(tmp_path)):
        small_job().submit()
    assert launcher.config.restart == weir.ExponentialDelay()
