"""A loaded model -> its engine, set up for the device it is on. One place for the worker and the benchmarks.

Owns what only measurement tells: how many threads sample, how small a chunk of a prompt is worth a step.
"""

from __future__ import annotations

from inference.config import InferenceConfig
from inference.engine.engine import Engine
from inference.llama import device
from inference.llama.loader import LoadedModel
from inference.prompt.tokenizer import Tokenizer

# With the engine's own. On an H100's host (16 cores) whole rows took 1.6 ms on one thread, 1.4 on two, 2.1 on four (32
# rows of 128,256, top-k 40): more of them only wait for each other's turn with the interpreter.
MAX_SAMPLER_THREADS = 2
# On an H100 beside 8 decode rows, which take 5.2 ms alone, 16 tokens of a prompt made a step of 15.9 ms, 32 of 17.0, 64
# of 19.0 and 128 of 24.8: most of it is one more graph, which smaller chunks pay more often for the same prompt (30,000
# tokens: 17.6 s in chunks of 32, 10.7 in 64). And prompts that come within two steps had better come together.
MIN_CHUNK_TOKENS_CPU, MIN_CHUNK_TOKENS_GPU = 16, 64
GATHER_STEPS_GPU = 2
DRY_BREAKERS = (b"\n", b":", b'"', b"*")  # llama.cpp's own


def new_engine(
    loaded: LoadedModel,
    config: InferenceConfig,
    tokenizer: Tokenizer,
    *,
    end_tokens: frozenset[int] | None = None,
    sampler_threads: int = 0,
) -> Engine:
    """The engine over `loaded`, not started. `end_tokens` None: the model's; `sampler_threads` 0: by the device."""
    backend = loaded.backend
    return Engine(
        backend,
        end_tokens=loaded.end_tokens if end_tokens is None else end_tokens,
        target_itl_ms=config.target_itl_ms,
        min_chunk_tokens=MIN_CHUNK_TOKENS_GPU if backend.is_async else MIN_CHUNK_TOKENS_CPU,
        gather_steps=GATHER_STEPS_GPU if backend.is_async else 0,
        min_copy_tokens=backend.min_copy_tokens,
        min_host_tokens=backend.min_host_tokens,
        host_cache_bytes=loaded.host_cache_bytes,
        sampler_threads=sampler_threads or min(MAX_SAMPLER_THREADS, max(1, device.usable_cores() // 2)),
        dry_breakers=_dry_breakers(tokenizer),
    )


def _dry_breakers(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that DRY does not look past: all whose text holds one of its marks."""
    return frozenset(
        token
        for token in range(tokenizer.vocab_size)
        if (data := tokenizer.token_bytes(token)) and any(mark in data for mark in DRY_BREAKERS)
    )
