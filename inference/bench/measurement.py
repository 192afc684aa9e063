"""What one request and one run took. Names of the results are those of vLLM's `bench serve`.

TTFT is from sending to the first piece of any kind, ITL the gap between two pieces that follow each other, TPOT the
time after the first token divided by the tokens after it, E2EL from sending to the end. All in milliseconds.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

PERCENTILES = (90, 99)


@dataclass(kw_only=True)
class RequestTimes:
    """One request as its sender saw it; times in seconds of one monotonic clock."""

    sent_at: float
    piece_times: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str = ""

    @property
    def ttft_ms(self) -> float:
        return (self.piece_times[0] - self.sent_at) * 1e3

    @property
    def itl_ms(self) -> list[float]:
        return [(b - a) * 1e3 for a, b in zip(self.piece_times, self.piece_times[1:])]

    @property
    def tpot_ms(self) -> float:
        return (self.piece_times[-1] - self.piece_times[0]) * 1e3 / max(1, self.output_tokens - 1)

    @property
    def e2el_ms(self) -> float:
        return (self.ended_at - self.sent_at) * 1e3


def percentile(values: list[float], percent: float) -> float:
    """The value below which `percent` of them lie, interpolated; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(times: list[RequestTimes], duration_seconds: float, **labels: object) -> dict[str, Any]:
    """One row of results over the requests of one run; `labels` come first."""
    done = [t for t in times if not t.error and t.piece_times]
    row: dict[str, Any] = dict(labels)
    row["completed"] = len(done)
    row["failed"] = len(times) - len(done)
    row["duration"] = duration_seconds
    row["total_input_tokens"] = sum(t.prompt_tokens for t in done)
    row["total_output_tokens"] = sum(t.output_tokens for t in done)
    row["request_throughput"] = len(done) / duration_seconds
    row["output_throughput"] = row["total_output_tokens"] / duration_seconds
    row["total_token_throughput"] = (row["total_input_tokens"] + row["total_output_tokens"]) / duration_seconds
    row["cached_tokens_share"] = sum(t.cached_tokens for t in done) / max(1, row["total_input_tokens"])
    for name, values in (
        ("ttft", [t.ttft_ms for t in done]),
        ("tpot", [t.tpot_ms for t in done if t.output_tokens > 1]),
        ("itl", [gap for t in done for gap in t.itl_ms]),
        ("e2el", [t.e2el_ms for t in done]),
    ):
        row[f"mean_{name}_ms"] = statistics.fmean(values) if values else 0.0
        row[f"median_{name}_ms"] = percentile(values, 50)
        for percent in PERCENTILES:
            row[f"p{percent}_{name}_ms"] = percentile(values, percent)
    return row
