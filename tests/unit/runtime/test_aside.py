"""The thread for errands of the stream."""

from __future__ import annotations

import threading

import pytest

from weir.errors import LocalDiskFailed
from weir.runtime.aside import ThreadAside


def test_errands_are_done_one_after_the_other_while_others_go_on() -> None:
    aside, gate, done = ThreadAside(), threading.Event(), list[int]()

    def wait() -> None:
        gate.wait()
        done.append(1)

    first = aside.run(wait)
    second = aside.run(lambda: done.append(2))
    assert not first.is_over() and not first.is_over(0.001) and not second.is_over()
    gate.set()
    assert first.is_over(10) and second.is_over(10)
    assert done == [1, 2]
    aside.close()


def test_what_an_errand_raises_is_raised_to_whoever_asks_and_the_next_is_done_all_the_same() -> None:
    aside = ThreadAside()

    def fail() -> None:
        raise LocalDiskFailed("no room")

    failed, other = aside.run(fail), aside.run(lambda: None)
    assert other.is_over(10)
    for _ in range(2):
        with pytest.raises(LocalDiskFailed, match="no room"):
            failed.is_over()
    aside.close()


def test_the_close_waits_for_what_has_begun_and_drops_the_rest() -> None:
    aside, begun, gate, done = ThreadAside(), threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        begun.set()
        gate.wait()
        done.append(1)

    aside.run(first)
    aside.run(lambda: done.append(2))
    assert begun.wait(10)
    threading.Timer(0.01, gate.set).start()
    aside.close()
    assert done == [1]


def test_the_close_does_not_wait_for_ever() -> None:
    aside, gate = ThreadAside(), threading.Event()

    def hang() -> None:
        gate.wait()

    aside.run(hang)
    aside.close(timeout_s=0.01)
    gate.set()


def test_an_aside_that_was_never_used_has_no_thread() -> None:
    before = threading.active_count()
    aside = ThreadAside()
    assert threading.active_count() == before
    aside.close()
