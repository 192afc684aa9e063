"""Settings of everything under `inference`, read once from the environment, checked, frozen.

A bad value stops the start with its name. Nothing else in `inference` reads the environment.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from inference import address
from inference.errors import ConfigError

V = TypeVar("V")

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
REDIS_EXAMPLE = "redis://:password@host:6379/0 or rediss://…"


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    redis_url: str
    model: str  # catalog name, or a path to a GGUF; "" lets the catalog choose
    model_dir: str  # where model files are looked for and downloaded to; "" = huggingface_hub's cache
    models_file: str  # extra catalog entries (TOML); "" = the shipped ones alone
    worker_name: str
    slots: int  # conversations that decode together; 0 = the catalog's value
    context_tokens: int  # of one slot; 0 = the catalog's value
    kv_type: str  # f16 | q8_0 | q4_0; "" = the catalog's value
    threads: int  # CPU threads of the forward pass; 0 = the cores this process may use
    kv_tokens: int  # of all slots together, in one pool; 0 = slots x context, each its own
    host_cache_mb: int  # host memory for prefixes that had to leave their slot; 0 = none
    memory_percent: (
        int  # of what is free, that a worker on a CPU may take; 0 = memory.CPU_MEMORY_PERCENT, or all it names
    )
    gpu_layers: int  # layers on the GPU; -1 = all where there is one
    batch_tokens: int  # prompt and decode tokens of one forward call, at most; 0 = by device, 512 or 8,192
    target_itl_ms: int  # running answers' time between tokens that prefill chunks aim to keep
    lease_seconds: float  # a worker that is silent this long has lost its generations
    max_attempts: int  # lost attempts before a generation is failed
    flush_ms: int  # news of one generation are gathered this long, after its first delta
    flush_tokens: int  # ... or until so many tokens came
    drain_seconds: float  # a stopping worker lets answers finish this long, then hands them on
    generation_seconds: float  # wall-clock cap of one answer
    loop_tokens: int  # an answer that only repeated itself over so many tokens is ended; 0 = never
    prefix_wait_ms: int  # how long a generation waits for the worker that holds its conversation's prefix
    log_ttl_seconds: int  # how long a log outlives its end
    metrics_port: int  # a worker's own Prometheus page, on all addresses; 0 = none
    hang_seconds: float  # a forward call that takes longer means the process is recycled
    handover: str  # what the image before left for this one (`worker.image`); set by the worker itself alone

    @property
    def names_a_size(self) -> bool:
        """Whether somebody asked for a size by name: then less than that is a degradation."""
        return bool(self.slots or self.context_tokens or self.kv_tokens)

    @property
    def names_its_size(self) -> bool:
        """Whether slots and context were both chosen, and with them the memory they take."""
        return bool((self.slots and self.context_tokens) or self.kv_tokens)


class Environment:
    """Reads typed values and says plainly which name is wrong."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str, default: str, *, choices: tuple[str, ...] = ()) -> str:
        value = self._env.get(name, "").strip() or default
        if choices and value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(c or 'empty' for c in choices)}, not {value!r}.")
        return value

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        return self._number(name, default, low, high, int, "a whole number")

    def integer_or_zero(self, name: str, default: int, *, low: int, high: int) -> int:
        """A whole number from `low` on, or 0, which switches something off."""
        return self.integer(name, default, low=low, high=high) if self._env.get(name, "").strip() != "0" else 0

    def seconds(self, name: str, default: float, *, low: float, high: float) -> float:
        return self._number(name, default, low, high, float, "a number of seconds")

    def flag(self, name: str, default: bool) -> bool:
        value = self._env.get(name, "").strip().lower()
        if not value:
            return default
        if value in ("1", "true", "yes", "on"):
            return True
        if value in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{name} must be 1 or 0, not {value!r}.")

    def words(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A comma-separated list."""
        value = self._env.get(name, "")
        return tuple(word.strip() for word in value.split(",") if word.strip()) or default

    def _number(self, name: str, default: V, low: V, high: V, kind: Callable[[str], V], what: str) -> V:
        raw = self._env.get(name, "").strip()
        if not raw:
            return default
        try:
            value = kind(raw)
        except ValueError:
            raise ConfigError(f"{name} must be {what}, not {raw!r}.") from None
        if not low <= value <= high:  # type: ignore[operator]
            raise ConfigError(f"{name} must be between {low} and {high}, not {raw}.")
        return value


def _check_redis_url(url: str) -> None:
    parts = address.split("REDIS_URL", url, schemes=("redis", "rediss"), example=REDIS_EXAMPLE)
    if not re.fullmatch(r"/?\d*", parts.path):
        raise ConfigError(f"REDIS_URL must look like {REDIS_EXAMPLE}, ending with the number of a database, if at all.")


def load(env: Mapping[str, str] | None = None) -> InferenceConfig:
    """Read `env` (the process's own when None).

    Raises:
        ConfigError: a value is not of its kind or out of range; the sentence begins with the name.
    """
    e = Environment(os.environ if env is None else env)
    redis_url = e.text("REDIS_URL", DEFAULT_REDIS_URL)
    _check_redis_url(redis_url)
    return InferenceConfig(
        redis_url=redis_url,
        model=e.text("MODEL", ""),
        model_dir=e.text("MODEL_DIR", ""),
        models_file=e.text("MODELS_FILE", ""),
        worker_name=e.text("WORKER_NAME", f"{socket.gethostname()}-{os.getpid()}"),
        slots=e.integer("WORKER_SLOTS", 0, low=0, high=256),
        context_tokens=e.integer("WORKER_CONTEXT_TOKENS", 0, low=0, high=1_048_576),
        kv_type=e.text("WORKER_KV_TYPE", "", choices=("", "f16", "q8_0", "q4_0")),
        threads=e.integer("WORKER_THREADS", 0, low=0, high=1024),
        kv_tokens=e.integer_or_zero("WORKER_KV_TOKENS", 0, low=512, high=1_000_000_000),
        host_cache_mb=e.integer("WORKER_HOST_CACHE_MB", 2_048, low=0, high=4_194_304),
        memory_percent=e.integer("WORKER_MEMORY_PERCENT", 0, low=0, high=95),
        gpu_layers=e.integer("WORKER_GPU_LAYERS", -1, low=-1, high=10_000),
        batch_tokens=e.integer("WORKER_BATCH_TOKENS", 0, low=0, high=65_536),
        target_itl_ms=e.integer("WORKER_TARGET_ITL_MS", 100, low=1, high=60_000),
        lease_seconds=e.seconds("LEASE_SECONDS", 10.0, low=1.0, high=600.0),
        max_attempts=e.integer("MAX_ATTEMPTS", 3, low=1, high=20),
        flush_ms=e.integer("STREAM_FLUSH_MS", 40, low=1, high=5_000),
        flush_tokens=e.integer("STREAM_FLUSH_TOKENS", 64, low=1, high=10_000),
        drain_seconds=e.seconds("DRAIN_SECONDS", 20.0, low=0.0, high=3_600.0),
        generation_seconds=e.seconds("GENERATION_SECONDS", 1_800.0, low=1.0, high=86_400.0),
        loop_tokens=e.integer_or_zero("LOOP_TOKENS", 512, low=256, high=100_000),
        prefix_wait_ms=e.integer("PREFIX_WAIT_MS", 300, low=0, high=60_000),
        log_ttl_seconds=e.integer("LOG_TTL_SECONDS", 900, low=10, high=604_800),
        metrics_port=e.integer("WORKER_METRICS_PORT", 0, low=0, high=65_535),
        hang_seconds=e.seconds("WORKER_HANG_SECONDS", 120.0, low=1.0, high=3_600.0),
        handover=e.text("WORKER_HANDOVER", ""),
    )
