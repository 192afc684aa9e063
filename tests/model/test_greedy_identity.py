"""Our engine writes the very tokens that llama.cpp writes by itself.

The reference below is llama.cpp's own plain way, as its `simple` and `batched` programs go it: a fresh context, the
prompts in one call, then token by token through its own greedy sampler. It shares nothing with the package under test
but the library and the model file.

Eight are compared with eight, and one with one: llama.cpp's CPU kernels round otherwise in another batch, random
weights have many near ties, and so it does not always agree with itself between the two.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import uuid4

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest

from inference import catalog
from inference.bench import shaped_model
from inference.config import InferenceConfig
from inference.config import load as load_config
from inference.engine.request import Ended, Output, Sink, Submission, Token
from inference.engine.sampling.plan import SamplerPlan
from inference.inspect import nope_layers
from inference.llama.loader import load
from inference.model_files.gguf_header import read as read_header
from inference.prompt.tokenizer import Tokenizer
from inference.worker.process.engine_setup import new_engine

pytestmark = pytest.mark.model

CONTEXT, SLOTS, NUM_NEW = 512, 8, 16
BATCH, GRAPH = 2048, 512  # all prompts in one call, of which the library makes several graphs
KV_TYPES = {"f16": lib.GGML_TYPE_F16, "q8_0": lib.GGML_TYPE_Q8_0}
# 3 to 402 tokens: shorter and longer than a tile of the attention kernels, together more than a graph.
PROMPTS = [[(5 + 31 * i + 7 * j) % 2800 for j in range(3 + 57 * i)] for i in range(SLOTS)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight layers, of which the fourth and the eighth are without RoPE: one with layers after it, one at the end."""
    shape = shaped_model.Shape(layers=8, width=256, ffn=512, heads=4, kv_heads=1, vocab=3072, context_tokens=2048)
    path = shaped_model.write(tmp_path_factory.mktemp("identity") / "eight-layers.gguf", shape)
    assert nope_layers(read_header(path)) == [3, 7]
    return path


class Plain:
    """llama.cpp alone: `answers` decodes the prompts, one sequence each, in one batch from beginning to end."""

    def __init__(self, path: Path) -> None:
        lib.llama_backend_init()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = lib.llama_model_load_from_file(str(path).encode(), params)
        assert self._model

    def close(self) -> None:
        lib.llama_model_free(self._model)

    def answers(self, prompts: Sequence[Sequence[int]], kv_type: str) -> list[list[int]]:
        params = lib.llama_context_default_params()
        params.n_ctx = CONTEXT * len(prompts)
        params.n_batch, params.n_ubatch = BATCH, GRAPH
        params.n_seq_max = len(prompts)
        params.n_threads = params.n_threads_batch = 2
        params.type_k = params.type_v = KV_TYPES[kv_type]
        context = lib.llama_init_from_model(self._model, params)
        assert context
        sampler = lib.llama_sampler_init_greedy()
        batch = lib.llama_batch_init(BATCH, 0, 1)
        answers: list[list[int]] = [[] for _ in prompts]
        rows = [(token, i, number) for number, prompt in enumerate(prompts) for i, token in enumerate(prompt)]
        ends = [sum(map(len, prompts[: number + 1])) - 1 for number in range(len(prompts))]
        try:
            for _ in range(NUM_NEW):
                self._decode(context, batch, rows, set(ends))
                for answer, end in zip(answers, ends, strict=True):
                    answer.append(int(lib.llama_sampler_sample(sampler, context, end)))
                rows = [(a[-1], len(p) + len(a) - 1, n) for n, (p, a) in enumerate(zip(prompts, answers, strict=True))]
                ends = list(range(len(rows)))
        finally:
            lib.llama_batch_free(batch)
            lib.llama_sampler_free(sampler)
            lib.llama_free(context)
        return answers

    @staticmethod
    def _decode(context: object, batch: ctypes.Structure, rows: list[tuple[int, int, int]], wanted: set[int]) -> None:
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = i in wanted
        batch.n_tokens = len(rows)
        assert lib.llama_decode(context, batch) == 0


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[Plain]:
    plain = Plain(path)
    yield plain
    plain.close()


def ours(path: Path, prompts: Sequence[Sequence[int]], config: InferenceConfig) -> list[list[int]]:
    """What a worker's engine makes of `prompts`, all submitted before its first step."""
    model = load(catalog.entry_of_path(path), config)
    engine = new_engine(model, config, Tokenizer(model.kit), end_tokens=frozenset())
    answers: list[list[int]] = [[] for _ in prompts]
    ends = [threading.Event() for _ in prompts]

    def sink_of(number: int) -> Sink:
        def sink(output: Output) -> None:
            if isinstance(output, Token):
                answers[number].append(output.id)
            elif isinstance(output, Ended):
                ends[number].set()

        return sink

    none = np.empty(0, np.int32)
    for number, prompt in enumerate(prompts):
        tokens = np.array(prompt, np.int32)
        plan = SamplerPlan(temperature=0.0)
        engine.submit(Submission(uuid4(), tokens, none, plan, NUM_NEW, "", 0, sink_of(number)))
    engine.start()
    try:
        assert all(end.wait(60) for end in ends)
    finally:
        engine.stop(10)  # closes the model too
    return answers


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_the_engine_writes_llama_cpps_own_greedy_tokens_alone_and_in_a_batch_of_eight(
    path: Path, plain: Plain, kv_type: str
) -> None:
    settings = {
        "WORKER_CONTEXT_TOKENS": str(CONTEXT),
        "WORKER_BATCH_TOKENS": str(BATCH),
        "WORKER_THREADS": "2",
        "WORKER_KV_TYPE": kv_type,
    }
    alone = [plain.answers([prompt], kv_type)[0] for prompt in PROMPTS]
    together = plain.answers(PROMPTS, kv_type)
    assert len({tuple(answer) for answer in alone}) == SLOTS
    eight = load_config({**settings, "WORKER_SLOTS": str(SLOTS)})
    assert ours(path, PROMPTS, eight) == together
    one = load_config({**settings, "WORKER_SLOTS": "1"})
    assert ours(path, PROMPTS, one) == alone
