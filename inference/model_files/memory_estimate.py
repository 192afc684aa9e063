"""How much memory a model takes, from the header of its file alone.

The one place of truth for the inspector, which shows it, and the loader, which chooses a context that fits by it.
Knows the shape of llama.cpp's graphs by measurement (its own log, for many shapes and sizes), nothing of requests.
Pure arithmetic; any thread.

Measured on one H100 with the 3B shape by nvidia-smi, the largest while all slots were busy, in MiB (estimates in
brackets): 32 slots of 4,096 tokens in f16 11,991 (11,991), 16 of 16,384 in q8_0 12,899 (12,615), one of 16,384 in q8_0
3,431 (3,435), 64 of 512 in f16 5,067 (5,065). A worker on a CPU with SmolLM2-135M and 8 slots of
1,024 tokens had 491 MiB resident; the estimate is 486.
"""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path

from inference.model_files.gguf_header import GgufHeader

KV_BYTES_PER_VALUE = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
CELL_PADDING = 256  # llama.cpp rounds the cells of a stream up to this
# Tokens of one graph. On an H100 2,048 read prompts 1.4 times as fast as 512 (22,700 against 16,000 tokens/s of the 3B
# shape); on a CPU larger graphs only cost memory.
GRAPH_TOKENS_CPU, GRAPH_TOKENS_GPU = 512, 2048

# On a machine without a GPU a worker is a guest beside a browser and an editor, and its batch is no faster for being
# larger than the cores. What nobody asked for by name stays within these.
CPU_MEMORY_PERCENT = 50  # of what is free
CPU_SLOTS_AT_LEAST, CPU_CORES_PER_SLOT = 2, 2

MIB = 2**20
GPU_RUNTIME_BYTES = 618 * MIB  # the driver's context, the kernels and their scratch memory
CPU_RUNTIME_BYTES = 160 * MIB  # the interpreter with all it imports
BYTES_PER_VOCAB_TOKEN = 800  # of the tokenizers, the library's and ours, and of the kit
_FLOAT, _MASK = 4, 2  # bytes of an activation, and of one token's view of one cell

# Copied at loading into an order that vector units like, on a CPU, unless their rows do not divide by 8.
_REPACKED_TYPES = {"Q4_0", "Q4_K", "IQ4_NL"}


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes. `kv_per_token` is a rate; all others are parts of `total`.

    `weights` and `kv` are exact. `repacked` is a CPU's second copy of some weights. `compute` is the graph's scratch
    memory, `outputs` the rows of logits (of host memory in any case), `runtime` all that is there without a model.
    `adapters` are the weights of LoRA adapters.
    """

    weights: int
    repacked: int
    kv_per_token: int
    kv: int
    compute: int
    outputs: int
    runtime: int
    adapters: int = 0

    @property
    def context(self) -> int:
        """What a context takes once the model is loaded."""
        return self.kv + self.compute + self.outputs

    @property
    def total(self) -> int:
        return self.weights + self.repacked + self.adapters + self.context + self.runtime

    def as_dict(self) -> dict[str, int]:
        return {**asdict(self), "total": self.total}


def estimate(
    header: GgufHeader,
    *,
    context_tokens: int,
    slots: int,
    kv_type: str,
    on_gpu: bool,
    pool_tokens: int = 0,
    graph_tokens: int = 0,
    is_unified: bool = False,
    adapter_bytes: int = 0,
) -> MemoryEstimate:
    """For `slots` conversations of `context_tokens`; `pool_tokens` of all together where they share fewer.

    Raises:
        ModelFileError: the header does not say what is needed.
    """
    cells = -(-context_tokens // CELL_PADDING) * CELL_PADDING
    total_cells = min(cells * slots, pool_tokens) if pool_tokens else cells * slots
    graph_tokens = graph_tokens or (GRAPH_TOKENS_GPU if on_gpu else GRAPH_TOKENS_CPU)
    per_token = header.kv_bytes_per_token(KV_BYTES_PER_VALUE[kv_type])
    vocab = header.num_vocab_tokens
    return MemoryEstimate(
        weights=_weights(header, on_gpu),
        repacked=0 if on_gpu or not _cpu_repacks() else _repacked(header),
        kv_per_token=per_token,
        kv=total_cells * per_token,
        compute=compute_bytes(
            header,
            graph_tokens=min(graph_tokens, total_cells),
            attended_cells=total_cells if is_unified or pool_tokens else cells,
            num_outputs=slots,
        ),
        outputs=0 if on_gpu else vocab * slots * _FLOAT,  # a GPU's worker has them in pinned host memory
        runtime=GPU_RUNTIME_BYTES if on_gpu else CPU_RUNTIME_BYTES + vocab * BYTES_PER_VOCAB_TOKEN,
        adapters=adapter_bytes,
    )


def cpu_slots(catalog_slots: int, cores: int) -> int:
    """How many conversations decode together on `cores` where nobody says otherwise."""
    return min(catalog_slots, max(CPU_SLOTS_AT_LEAST, cores // CPU_CORES_PER_SLOT))


def compute_bytes(header: GgufHeader, *, graph_tokens: int, attended_cells: int, num_outputs: int) -> int:
    """The peak of one graph's activations, as llama.cpp's allocator places them.

    It is reached in the feed-forward part (gate, up and their product beside the residual stream), in attention where
    that part is narrow, or at the logits of a small model with many slots; the mask lives throughout.
    """
    width = header.number_here("embedding_length")
    kv_width = max(header.kv_heads, default=0) * max(header.head_dims)
    inner = max([0, *header.per_layer("feed_forward_length"), _expert_width(header)])
    attention = 4 * width + 2 * kv_width
    if inner > 2 * width:
        feed_forward = 3 * inner + 4 * width
    elif inner > width:  # fits into the holes that two activations leave
        feed_forward = 3 * inner + 3 * width
    else:
        feed_forward = 5 * width
    body = max(attention, feed_forward) * graph_tokens
    logits = num_outputs * (header.num_vocab_tokens + width) + width * graph_tokens
    return max(body, logits) * _FLOAT + attended_cells * graph_tokens * _MASK


def _expert_width(header: GgufHeader) -> int:
    return header.number_here("expert_used_count") * header.number_here("expert_feed_forward_length")


def _weights(header: GgufHeader, on_gpu: bool) -> int:
    total = sum(tensor.num_bytes or 0 for tensor in header.tensors) or header.file_bytes - header.data_offset
    embeddings = header.tensor("token_embd.weight")
    # Rows of the embedding table are looked up on the host; a tied table is also the output matrix, on the GPU.
    if on_gpu and embeddings is not None and header.tensor("output.weight") is not None:
        total -= embeddings.num_bytes or 0
    return total


def _repacked(header: GgufHeader) -> int:
    return sum(
        tensor.num_bytes or 0
        for tensor in header.tensors
        if tensor.type_name in _REPACKED_TYPES
        and len(tensor.shape) == 2
        and tensor.shape[1] % 8 == 0
        and not tensor.name.startswith("token_embd")
    )


def _cpu_repacks() -> bool:
    """Whether this machine's CPU has the instructions that the reordered weights are for."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        try:
            return "avx2" in Path("/proc/cpuinfo").read_text()
        except OSError:  # not Linux: any x86 of the last ten years has them
            return True
    return machine in ("arm64", "aarch64")
