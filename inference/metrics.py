"""Metric names and buckets of a worker. Objects only: whoever measures observes them.

The site's `/metrics` reads the workers' cards from Redis; these are the finer ones inside a worker process, which it
shows itself on `WORKER_METRICS_PORT`.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_WAIT_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0, 30.0)

TTFT_SECONDS = Histogram(
    "smolfleet_ttft_seconds", "From submit to the first delta of any kind", ["model"], buckets=_WAIT_BUCKETS
)
ITL_SECONDS = Histogram("smolfleet_itl_seconds", "Between two tokens of one sequence", ["model"], buckets=_STEP_BUCKETS)
QUEUE_WAIT_SECONDS = Histogram(
    "smolfleet_queue_wait_seconds", "From submit to the first prefill", ["model"], buckets=_WAIT_BUCKETS
)
STEP_SECONDS = Gauge("smolfleet_step_seconds", "Duration of the engine's newest step", ["model"])
HOST_SECONDS = Gauge("smolfleet_host_seconds", "Of a mean step, spent outside forward call and sampling", ["model"])
DEGRADATIONS = Gauge("smolfleet_worker_degradations", "Ways in which a worker is less than it should be", ["model"])
SLOTS = Gauge("smolfleet_slots", "Seats for sequences", ["model"])
SLOTS_BUSY = Gauge("smolfleet_slots_busy", "Seats taken", ["model"])
CACHED_TOKENS = Gauge("smolfleet_cached_tokens", "Prompt tokens found in the prefix cache since the start", ["model"])
PREFILLED_TOKENS = Gauge("smolfleet_prefilled_tokens", "Prompt tokens read since the start", ["model"])
DECODED_TOKENS = Gauge("smolfleet_decoded_tokens", "Tokens written since the start", ["model"])
HOST_RESTORED_TOKENS = Gauge(
    "smolfleet_host_restored_tokens", "Of the cached tokens, those that came out of host memory", ["model"]
)
HOST_CACHE_BYTES = Gauge("smolfleet_host_cache_bytes", "What the prefixes in host memory take", ["model"])
POOL_TOKENS = Gauge("smolfleet_pool_tokens", "Tokens that all seats together can hold", ["model"])
HELD_TOKENS = Gauge("smolfleet_held_tokens", "Tokens that the seats hold, cached or in use", ["model"])
EVICTIONS = Gauge("smolfleet_evictions", "Seats whose cached tokens had to go for others, since the start", ["model"])
PREEMPTIONS = Gauge("smolfleet_preemptions", "Times an answer had to wait again, since the start", ["model"])
BAD_ROWS = Gauge("smolfleet_bad_rows", "Answers that got no usable numbers, since the start", ["model"])
FAILED_FORWARDS = Gauge("smolfleet_failed_forwards", "Forward calls that failed, since the start", ["model"])
GENERATIONS = Counter("smolfleet_generations", "Answers ended here", ["model", "reason"])
CUT = Counter(
    "smolfleet_generations_cut", "Answers that a limit ended: tokens, context, time, repetition", ["model", "cut"]
)
ATTEMPTS_LOST = Counter(
    "smolfleet_attempts_lost", "Attempts ended because the lease was somebody else's or the engine failed", ["model"]
)
