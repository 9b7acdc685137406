"""The mailbox wakes its loop, and work behind the stream's back reports on the loop's own thread."""

from __future__ import annotations

import gc
import threading
import time
import weakref

from tests.conftest import poll
from weir.runtime.clock import Mailbox, SystemClock, ThreadBackground


def test_the_clock_grows_in_milliseconds() -> None:
    clock, started_s = SystemClock(), time.monotonic()
    assert started_s * 1_000 <= clock.now_ms() <= clock.now_ms() <= time.monotonic() * 1_000


def test_a_wait_ends_at_its_time_or_when_woken() -> None:
    mailbox = Mailbox()
    assert not mailbox.wait(1)
    mailbox.wake()
    mailbox.wake()
    assert mailbox.wait(None)
    assert not mailbox.wait(0)
    threading.Timer(0.02, mailbox.wake).start()
    assert mailbox.wait(10_000)


def test_posted_calls_run_in_order_on_the_thread_that_drains() -> None:
    mailbox, ran = Mailbox(), []
    threads = [
        threading.Thread(
            target=lambda i=i: [mailbox.post(lambda n=n: ran.append((i, n, threading.get_ident()))) for n in range(100)]
        )
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mailbox.wait(None)
    assert mailbox.drain() == 300
    assert mailbox.drain() == 0
    for i in range(3):
        assert [n for j, n, _ in ran if i == j] == list(range(100))
    assert {ident for _, _, ident in ran} == {threading.get_ident()}


def test_what_a_call_posts_waits_for_the_next_drain() -> None:
    mailbox, ran = Mailbox(), []
    mailbox.post(lambda: mailbox.post(lambda: ran.append(1)))
    assert mailbox.drain() == 1
    assert ran == []
    assert mailbox.wait(None)
    assert mailbox.drain() == 1
    assert ran == [1]


def test_results_and_errors_come_back_on_the_loops_thread() -> None:
    mailbox = Mailbox()
    background = ThreadBackground(2, mailbox)
    results: list[object] = []
    workers: set[int] = set()

    def done(result: object) -> None:
        assert threading.get_ident() not in workers
        results.append(result)

    def work(n: int) -> int:
        workers.add(threading.get_ident())
        return 10 // n

    for n in (5, 0, 2):
        background.run(lambda n=n: work(n), done)
    deadline_s = time.monotonic() + 10
    while len(results) < 3:
        assert mailbox.wait(10_000)
        assert time.monotonic() < deadline_s
        mailbox.drain()
    assert sorted(r for r in results if isinstance(r, int)) == [2, 5]
    assert [type(r) for r in results if isinstance(r, BaseException)] == [ZeroDivisionError]
    assert background.close()


def test_no_more_threads_than_allowed_work_at_once() -> None:
    background = ThreadBackground(2, Mailbox())
    lock, free, seen = threading.Lock(), threading.Event(), {"now": 0, "most": 0, "all": 0}

    def work() -> None:
        with lock:
            seen["now"] += 1
            seen["all"] += 1
            seen["most"] = max(seen["most"], seen["now"])
        free.wait(10)
        with lock:
            seen["now"] -= 1

    for _ in range(6):
        background.run(work, lambda _: None)
    poll(lambda: seen["now"] == 2)
    free.set()
    poll(lambda: seen["all"] == 6)
    assert seen["most"] == 2
    assert background.close()


def test_close_waits_for_running_work_drops_the_rest_and_gives_up_in_time() -> None:
    mailbox = Mailbox()
    background = ThreadBackground(1, mailbox)
    begun, free, ran = threading.Event(), threading.Event(), []
    background.run(lambda: (begun.set(), free.wait(30)), lambda _: ran.append("first"))
    background.run(lambda: None, lambda _: ran.append("never"))
    assert begun.wait(10)
    started_s = time.monotonic()
    assert not background.close(timeout_s=0.05)
    assert time.monotonic() - started_s < 5
    free.set()
    assert background.close(timeout_s=10)
    mailbox.drain()
    assert ran == ["first"]
    background.run(lambda: ran.append("late"), lambda _: ran.append("never"))
    mailbox.drain()
    assert ran == ["first"], "what is begun by the last results is too late, and no reason to fail"


def test_finished_work_is_not_kept_in_memory() -> None:
    class Large:
        pass

    mailbox = Mailbox()
    background = ThreadBackground(1, mailbox)
    large = Large()
    gone = weakref.ref(large)
    background.run(lambda held=large: None, lambda _: None)
    del large
    assert mailbox.wait(10_000)
    mailbox.drain()

    def collected() -> bool:
        gc.collect()
        return gone() is None

    assert poll(collected)
    background.close()
