"""What TLS costs: a workload without it, twice with it, and without it again, in one run.

Comes in: a workload. Goes out: its report with TLS, and what it measured without. In that order, so that a machine
that slows down or warms up meanwhile counts for both sides alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weir.bench.harness import BenchOptions, BenchReport

ORDER = (False, True, True, False)


def run_with_tls(workload: Callable[[BenchOptions], BenchReport], options: BenchOptions) -> BenchReport:
    reports = [(tls, workload(replace(options, tls=tls))) for tls in ORDER]
    plain = [report for tls, report in reports if not tls]
    encrypted = [report for tls, report in reports if tls]
    rate, plain_rate = (_mean([report.events_per_s for report in side]) for side in (encrypted, plain))
    more = {**encrypted[0].more, "plain_events_per_s": round(plain_rate), "tls_rate_ratio": round(rate / plain_rate, 3)}
    found: dict[str, float] = {}
    for name in ("p50_ms", "p99_ms"):
        values = [[getattr(report, name) for report in side] for side in (encrypted, plain)]
        if None not in values[0]:
            found[name], more[f"plain_{name}"] = (round(_mean(side), 2) for side in values)
            more[f"tls_{name}_ratio"] = round(found[name] / max(more[f"plain_{name}"], 1e-9), 3)
    return replace(
        encrypted[0],
        seconds=round(_mean([report.seconds for report in encrypted]), 3),
        events_per_s=round(rate),
        verified=all(report.verified for _, report in reports),
        more=more,
        p50_ms=found.get("p50_ms"),
        p99_ms=found.get("p99_ms"),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
