"""What the command line decides over a script's own settings."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from weir.api import overrides
from weir.api.environment import Environment
from weir.api.overrides import overriding
from weir.config import Checkpoints
from weir.errors import ConfigError


def test_nothing_is_overridden_by_default() -> None:
    own = Checkpoints(every="3s", to="mine")
    assert overrides.current() == overrides.Overrides()
    assert overrides.current().apply_to_checkpoints(own) is own
    assert overrides.current().apply_to_checkpoints(None) is None


def test_overrides_end_with_their_block_even_after_an_error() -> None:
    with pytest.raises(KeyError), overriding(parallelism=3):
        raise KeyError
    assert overrides.current().parallelism is None


def test_inner_overrides_stand_alone_and_give_way_to_the_outer_ones() -> None:
    with overriding(parallelism=3):
        with overriding(resume=True):
            assert overrides.current().parallelism is None
            assert overrides.current().resume is True
        assert overrides.current().parallelism == 3


def test_a_checkpoint_location_keeps_the_scripts_other_settings() -> None:
    with overriding(checkpoints_to="theirs"):
        changed = overrides.current().apply_to_checkpoints(Checkpoints(every="3s", to="mine"))
        fresh = overrides.current().apply_to_checkpoints(None)
    assert changed == Checkpoints(every="3s", to="theirs")
    assert fresh == Checkpoints(to="theirs")


@pytest.mark.parametrize("given", [{"from_savepoint": ""}, {"from_savepoint": " "}, {"at": "", "resume": True}])
def test_an_empty_text_is_refused_whoever_gives_it(given: dict[str, Any]) -> None:
    env = Environment(parallelism=1, checkpoints=Checkpoints(to="mine"))
    with overriding(**given), pytest.raises(ConfigError, match=r"empty text|names no checkpoint"):
        env._config()
    with pytest.raises(ConfigError, match=r"empty text|names no checkpoint"):
        env._config(**given)
    with pytest.raises(ConfigError, match="name of a job is an empty text"):
        env._config("")


def test_what_the_command_line_says_wins() -> None:
    env = Environment(parallelism=1, checkpoints=Checkpoints(to="mine"))
    with overriding(from_savepoint="theirs", at="chk-0000000012"):
        config = env._config(from_savepoint="mine", at="chk-0000000011")
    assert (config.from_savepoint, config.back_to) == ("theirs", 12)


def test_threads_that_a_script_starts_see_the_overrides() -> None:
    seen: list[int | None] = []
    with overriding(parallelism=3):
        thread = threading.Thread(target=lambda: seen.append(overrides.current().parallelism))
        thread.start()
        thread.join()
    assert seen == [3]
