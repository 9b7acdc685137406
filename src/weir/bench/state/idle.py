"""A process that does nothing but look at the clock, on one processor: when it is late, the machine stood still.

Comes in: the number of a processor, as the argument; the end of standard input. Goes out: READY, then a line with the
beginning and the end of each pause, by the monotonic clock. Run as a file of its own: it imports next to nothing.
"""

from __future__ import annotations

import os
import select
import sys
import time

READY = "ready"
NAP_S = 0.001
LATE_S = 0.004
"""A nap that ends so much too late was held up. Below, it is what any process waits for its turn."""


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {int(sys.argv[1])})
    looked_s, is_over = time.monotonic(), False
    print(READY, flush=True)
    while not is_over:
        is_over = bool(select.select([sys.stdin], [], [], NAP_S)[0])
        now_s = time.monotonic()
        if now_s - looked_s > NAP_S + LATE_S:
            print(looked_s + NAP_S, now_s)
        looked_s = now_s


if __name__ == "__main__":
    main()
