"""A catalog entry -> a model that is loaded, checked and warm.

Owns the order of loading and every degradation: no GPU -> CPU, too little memory -> smaller context, then fewer
slots, then a smaller KV type. Each is a sentence of its own, and logged. On a CPU what nobody asked for is measured by
cores and free memory instead, and says nothing. Called once by a worker before its engine thread starts; memory is
given back surely only by ending the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import llama_cpp.llama_cpp as lib
import msgspec
import structlog

from inference import catalog, metrics
from inference.catalog import CatalogEntry
from inference.config import InferenceConfig
from inference.errors import ModelFileError
from inference.llama import adapters as native_adapters
from inference.llama import device as devices
from inference.llama import self_test
from inference.llama.context import ContextForm, LlamaBackend, new_context
from inference.llama.excerpts import block_width
from inference.llama.native_log import last_words, quiet, recent_lines
from inference.llama.vocab import Vocabulary, kit_of, mismatch
from inference.messages.cards import ModelCard
from inference.model_files import memory_estimate
from inference.model_files.gguf_header import GgufHeader
from inference.model_files.load_notes import NO_GPU, Notes
from inference.model_files.memory_estimate import (
    CELL_PADDING,
    GRAPH_TOKENS_CPU,
    GRAPH_TOKENS_GPU,
    KV_BYTES_PER_VALUE,
    MemoryEstimate,
)
from inference.prompt.builder import PromptBuilder
from inference.prompt.kit import PromptKit
from inference.prompt.tokenizer import check_supported

log = structlog.get_logger(__name__)

SMALLEST_USEFUL_CONTEXT = 2048  # before slots are given up; afterwards the context shrinks on
SMALLEST_CONTEXT = 512
MEMORY_RESERVE = 0.05  # of what is free, for what the estimate does not know
SMALLEST_DEFAULT_CONTEXT = 4096  # of one conversation, even where that is more than the CPU's share of the memory
HOST_CACHE_SHARE = 0.25  # of the host memory that is free once the model is loaded, at most
BATCH_TOKENS_CPU, BATCH_TOKENS_GPU = 512, 8192  # of one step, where WORKER_BATCH_TOKENS leaves it to the device


@dataclass(frozen=True)
class LoadedModel:
    """`card.prompt_kit` is "" until the registry has stored the kit and given its key. `host_cache_bytes` is what the
    engine may fill with prefixes that left their slot. `degradations` say where it is less than was asked for, `notes`
    what else is worth knowing, a sentence each."""

    backend: LlamaBackend
    kit: PromptKit
    card: ModelCard
    end_tokens: frozenset[int]
    notes: tuple[str, ...]
    degradations: tuple[str, ...]
    device: str
    host_cache_bytes: int


def load(
    entry: CatalogEntry, config: InferenceConfig, *, unified: bool = False, has_excerpts: bool | None = None
) -> LoadedModel:
    """Find, check, load and test the model of `entry`; settings of `config` that are not 0 or "" win over it.

    `has_excerpts`: whether the device hands over excerpts of the logits; None: on a GPU, where it saves the most.

    Raises:
        ModelFileError: the file or an adapter's is unusable, or not even the smallest context fits; the sentence says
            which.
        EngineError: the model answers wrongly on this device (`self_test`).
    """
    started = time.monotonic()
    quiet()
    lib.llama_backend_init()
    header = catalog.resolve(entry, model_dir=config.model_dir)
    entry = catalog.completed(entry, header)
    check_supported(header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre", "default"))
    adapters = catalog.resolve_adapters(entry, header, model_dir=config.model_dir)
    notes = Notes(entry.notes)
    for adapter in adapters:
        notes.inform(f"The adapter {adapter.name} is laid over the model, {adapter.scale:g} times.")
    if not entry.template and not header.text("tokenizer.chat_template"):
        notes.degrade("The model file has no chat template; ChatML is used, which the model may not have learnt.")
    gpus = devices.gpus() if config.gpu_layers else []
    if not gpus and config.gpu_layers:
        notes.degrade(NO_GPU)
    free_before = devices.free_memory_bytes()
    model, on_gpu = _open_model(header, config, bool(gpus), notes)
    form = _wanted_form(entry, config, header, unified, on_gpu, notes)
    try:
        handles = native_adapters.open_all(model, adapters)
        limit = _gpu_limit() if on_gpu else _cpu_limit(header, form, config, free_before)
        is_default = not on_gpu and not config.names_a_size
        context, form = _open_context(model, header, form, limit, on_gpu, notes, is_default=is_default)
        native_adapters.lay_over(context, handles, adapters)
    except ModelFileError:
        lib.llama_model_free(model)
        raise
    if has_excerpts is None:
        vocab_size = int(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        has_excerpts = on_gpu and block_width(vocab_size) is not None
    backend = LlamaBackend(model, context, form, is_async=on_gpu, has_excerpts=has_excerpts)
    try:
        vocabulary = Vocabulary(model)
        kit = kit_of(header, entry, model=model, context_tokens=form.context_tokens)
        builder = PromptBuilder(kit)
        difference = mismatch(builder.tokenizer, vocabulary)
        if difference:
            notes.degrade(difference + " Prompts may be read slightly otherwise than in training.")
        _check_special_ids(kit, builder, vocabulary, notes)
        self_test.run(backend, builder.tokenizer.encode_text(self_test.PROBE_TEXT))
    except Exception:
        backend.close()
        raise
    host_cache_bytes = config.host_cache_mb * 2**20
    if (free := devices.free_memory_bytes()) is not None:
        host_cache_bytes = min(host_cache_bytes, int(free * HOST_CACHE_SHARE))
    if not on_gpu and free_before is not None and (share := _share(config)) is not None:
        left = int(free_before * share) - _estimate(header, form, on_gpu).total
        host_cache_bytes = max(0, min(host_cache_bytes, left))
    device = ", ".join(gpu.name for gpu in gpus) if on_gpu else f"CPU ({form.threads} threads)"
    card = ModelCard(
        name=entry.name,
        title=entry.title,
        architecture=header.architecture,
        context_tokens=form.context_tokens,
        prompt_kit="",
        thinking=kit.thinking is not None,
        tools=bool(kit.tools),
        sampling=kit.sampling,
        size_bytes=int(lib.llama_model_size(model)),
        quantization=header.quantization,
        adapters=tuple(f"{adapter.name} x {adapter.scale:g}" for adapter in adapters),
    )
    metrics.DEGRADATIONS.labels(entry.name).set(len(notes.degradations))
    for sentence in notes.degradations:
        log.warning("model_degraded", model=entry.name, reason=sentence)
    log.info(
        "model_loaded",
        model=entry.name,
        device=device,
        slots=form.slots,
        context_tokens=form.context_tokens,
        kv_type=form.kv_type,
        unified=form.unified,
        pool_tokens=form.total_tokens,
        host_cache_bytes=host_cache_bytes,
        end_tokens=[kit.tokens[i] for i in kit.end_tokens],
        seconds=round(time.monotonic() - started, 2),
        adapters=card.adapters,
        notes=notes.informing,
    )
    return LoadedModel(
        backend,
        kit,
        card,
        frozenset(kit.end_tokens),
        tuple(notes.informing),
        tuple(notes.degradations),
        device,
        host_cache_bytes,
    )


def _open_model(header: GgufHeader, config: InferenceConfig, has_gpu: bool, notes: Notes) -> tuple[Any, bool]:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = config.gpu_layers if has_gpu else 0  # negative = all
    model = lib.llama_model_load_from_file(str(header.path).encode(), params)
    if not model and has_gpu:
        log.error("gpu_load_failed", library=recent_lines())
        notes.degrade("The model could not be loaded onto the GPU, so answers are computed on the CPU.")
        has_gpu = False
        params.n_gpu_layers = 0
        model = lib.llama_model_load_from_file(str(header.path).encode(), params)
    if not model:
        raise ModelFileError(f"llama.cpp cannot load {header.path}: {last_words()}", path=str(header.path))
    return model, has_gpu


def _wanted_form(
    entry: CatalogEntry, config: InferenceConfig, header: GgufHeader, unified: bool, on_gpu: bool, notes: Notes
) -> ContextForm:
    trained = header.trained_context_tokens or entry.context_tokens
    most = entry.max_context_tokens or trained
    wanted = config.context_tokens or entry.context_tokens
    if wanted > most:
        notes.degrade(f"{entry.title} takes at most {most:,} tokens of context, so {wanted:,} were not granted.")
        wanted = most
    # llama.cpp rounds a stream's cells up to 256; rounding down here keeps its numbers and ours the same.
    context_tokens = max(CELL_PADDING, wanted // CELL_PADDING * CELL_PADDING)
    threads = config.threads or devices.usable_cores()
    slots = config.slots or (entry.slots if on_gpu else memory_estimate.cpu_slots(entry.slots, threads))
    pool_tokens = config.kv_tokens // CELL_PADDING * CELL_PADDING
    if 0 < pool_tokens < slots * context_tokens:
        unified = True  # only one pool can be shared
        context_tokens = min(context_tokens, pool_tokens)
        notes.inform(f"All conversations together may fill {pool_tokens:,} tokens; beyond that they take turns.")
    else:
        pool_tokens = 0
    return ContextForm(
        context_tokens=context_tokens,
        slots=slots,
        pool_tokens=pool_tokens,
        batch_tokens=config.batch_tokens or (BATCH_TOKENS_GPU if on_gpu else BATCH_TOKENS_CPU),
        graph_tokens=GRAPH_TOKENS_GPU if on_gpu else GRAPH_TOKENS_CPU,
        kv_type=config.kv_type or entry.kv_type,
        threads=threads,
        unified=unified,
        yarn_factor=max(1.0, context_tokens / trained),
    )


def _gpu_limit() -> float:
    return sum(gpu.free_bytes for gpu in devices.gpus()) * (1 - MEMORY_RESERVE)


def _share(config: InferenceConfig) -> float | None:
    """Of the memory that was free, what a worker on a CPU may take with all it has; None: what it was asked for."""
    if config.names_its_size and not config.memory_percent:
        return None
    return (config.memory_percent or memory_estimate.CPU_MEMORY_PERCENT) / 100


def _cpu_limit(header: GgufHeader, form: ContextForm, config: InferenceConfig, free_before: int | None) -> float | None:
    """Bytes that a context may take; None where nobody can tell."""
    free = devices.free_memory_bytes()
    if free is None or free_before is None:
        return None
    most = free * (1 - MEMORY_RESERVE)
    share = _share(config)
    if share is None:
        return most
    whole = _estimate(header, form, on_gpu=False)
    left = free_before * share - (whole.weights + whole.repacked + whole.adapters)
    smallest = replace(form, slots=1, pool_tokens=0)
    smallest = _with_context(smallest, min(form.context_tokens, SMALLEST_DEFAULT_CONTEXT))
    return min(most, max(left, _estimate(header, smallest, on_gpu=False).context))


def _open_context(
    model: Any,
    header: GgufHeader,
    form: ContextForm,
    limit: float | None,
    on_gpu: bool,
    notes: Notes,
    *,
    is_default: bool,
) -> tuple[Any, ContextForm]:
    """The largest context on the ladder that fits. Linux promises memory it does not have, and a CPU cache that is
    too large gets the process killed when it is zeroed; so size is estimated first, and only then tried. Less than
    what nobody asked for is no degradation (`is_default`)."""
    need = 0
    for candidate in _ladder(form, spares_slots=is_default):
        need = _estimate(header, candidate, on_gpu).context
        if limit is not None and need > limit:
            continue
        context = new_context(model, candidate)
        if context is None:
            log.warning("context_refused", tokens=candidate.total_tokens, library=recent_lines(3))
            continue
        for sentence in () if is_default else _shortages(form, candidate):
            notes.degrade(sentence)
        if candidate.yarn_factor > 1:
            trained = round(candidate.context_tokens / candidate.yarn_factor)
            notes.inform(
                f"A conversation may fill {candidate.context_tokens:,} tokens; the model was trained with {trained:,}, "
                f"so YaRN stretches its positions {candidate.yarn_factor:.3g} times."
            )
        return context, candidate
    raise ModelFileError(
        f"There is not enough memory for {header.path.name}: even one conversation of {SMALLEST_CONTEXT} tokens "
        f"(about {need / 2**20:.0f} MiB beside the weights) could not be set up. {last_words()}",
        path=str(header.path),
    )


def _estimate(header: GgufHeader, form: ContextForm, on_gpu: bool) -> MemoryEstimate:
    return memory_estimate.estimate(
        header,
        context_tokens=form.context_tokens,
        slots=form.slots,
        kv_type=form.kv_type,
        on_gpu=on_gpu,
        pool_tokens=form.pool_tokens,
        graph_tokens=min(form.library_batch_tokens, form.graph_tokens),
        is_unified=form.unified,
    )


def _shortages(wanted: ContextForm, got: ContextForm) -> list[str]:
    """What `got` lacks, a sentence each."""
    notes = []
    if got.context_tokens < wanted.context_tokens:
        notes.append(
            f"Memory was short: a conversation may fill {got.context_tokens:,} tokens "
            f"instead of {wanted.context_tokens:,}."
        )
    if got.pool_tokens < wanted.pool_tokens:
        notes.append(
            f"Memory was short: all conversations together may fill {got.total_tokens:,} tokens "
            f"instead of {wanted.total_tokens:,}."
        )
    if got.slots < wanted.slots:
        notes.append(f"Memory was short: {got.slots} conversations at a time instead of {wanted.slots}.")
    if got.kv_type != wanted.kv_type:
        notes.append(f"Memory was short: keys and values are kept as {got.kv_type} instead of {wanted.kv_type}.")
    return notes


def _ladder(form: ContextForm, *, spares_slots: bool = False) -> Iterator[ContextForm]:
    """Ever smaller: a shared pool halves down to one context, context down to a useful size, then slots halve, then
    keys and values get fewer bits, then context again. `spares_slots`: slots that nobody asked for go first."""
    yield form
    while spares_slots and form.slots > memory_estimate.CPU_SLOTS_AT_LEAST:
        form = replace(form, slots=max(memory_estimate.CPU_SLOTS_AT_LEAST, form.slots // 2))
        yield form
    while form.pool_tokens > form.context_tokens:
        form = replace(form, pool_tokens=max(form.context_tokens, form.pool_tokens // 2 // CELL_PADDING * CELL_PADDING))
        yield form
    while form.context_tokens > SMALLEST_USEFUL_CONTEXT:
        form = _with_context(form, max(SMALLEST_USEFUL_CONTEXT, form.context_tokens // 2))
        yield form
    while form.slots > 1:
        form = replace(form, slots=form.slots // 2)
        yield form
    for kv_type in sorted(KV_BYTES_PER_VALUE, key=KV_BYTES_PER_VALUE.__getitem__, reverse=True):
        if KV_BYTES_PER_VALUE[kv_type] < KV_BYTES_PER_VALUE[form.kv_type]:
            form = replace(form, kv_type=kv_type)
            yield form
    while form.context_tokens > SMALLEST_CONTEXT:
        form = _with_context(form, max(SMALLEST_CONTEXT, form.context_tokens // 2))
        yield form


def _with_context(form: ContextForm, context_tokens: int) -> ContextForm:
    rounded = max(CELL_PADDING, context_tokens // CELL_PADDING * CELL_PADDING)
    trained = form.context_tokens / form.yarn_factor
    return replace(
        form,
        context_tokens=rounded,
        pool_tokens=rounded if form.pool_tokens else 0,  # it has shrunk to one context before
        yarn_factor=max(1.0, rounded / trained) if form.yarn_factor > 1 else 1,
    )


def _check_special_ids(kit: PromptKit, builder: PromptBuilder, vocabulary: Vocabulary, notes: Notes) -> None:
    """Each tag the model thinks or calls tools with must be one token for both tokenizers, or is said to be none."""
    tags = [kit.thinking.open, kit.thinking.close] if kit.thinking else []
    for tag in tags:
        theirs = vocabulary.tokenize(tag, parse_special=True)
        ours = builder.tokenizer.encode_scaffold(tag)
        if theirs != ours:
            raise ModelFileError(f"The tag {tag} is token {ours} here but {theirs} for llama.cpp.")
        if len(ours) != 1:
            notes.degrade(f"{tag} is not one token of this model; it is recognised by its text.")
    ends = {kit.tokens[i] for i in kit.end_tokens}
    if "<|im_end|>" in kit.special_ids and "<|im_end|>" not in ends:
        raise ModelFileError("<|im_end|> is a token of this model but does not end its answers; the file is damaged.")


def with_kit_key(card: ModelCard, key: str) -> ModelCard:
    """The card once the registry has stored the kit."""
    return msgspec.structs.replace(card, prompt_kit=key)
