"""A catalog entry -> a model that is loaded, checked and warm.

Owns the order of loading and every degradation: no GPU -> CPU, too little memory -> smaller context, then fewer
slots. Each is a sentence in `notes`. Called once by a worker before its engine thread starts; memory is given back
surely only by ending the process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import llama_cpp.llama_cpp as lib
import msgspec
import numpy as np
import structlog

from inference import catalog, gguf_header
from inference.catalog import CatalogEntry
from inference.config import InferenceConfig
from inference.engine.batch import Batch
from inference.errors import EngineError, ModelFileError
from inference.gguf_header import GgufHeader
from inference.llama import device as devices
from inference.llama.context import CELL_PADDING, KV_BYTES_PER_VALUE, ContextForm, LlamaBackend, new_context
from inference.llama.native_log import last_words, quiet, recent_lines
from inference.llama.vocab import Vocabulary, kit_of, mismatch
from inference.prompt.builder import PromptBuilder
from inference.prompt.kit import PromptKit
from inference.prompt.tokenizer import check_supported
from inference.protocol import ModelCard

log = structlog.get_logger(__name__)

SMALLEST_USEFUL_CONTEXT = 2048  # before slots are given up; afterwards the context shrinks on
SMALLEST_CONTEXT = 512
MEMORY_RESERVE = 0.10  # of what is free, for the graph's buffers and everything else
UNIFIED_BY_DEFAULT = True


@dataclass(frozen=True)
class LoadedModel:
    """`card.prompt_kit` is "" until the registry has stored the kit and given its key."""

    backend: LlamaBackend
    kit: PromptKit
    card: ModelCard
    end_tokens: frozenset[int]
    notes: tuple[str, ...]
    device: str


def load(entry: CatalogEntry, config: InferenceConfig, *, unified: bool = UNIFIED_BY_DEFAULT) -> LoadedModel:
    """Find, check, load and warm the model of `entry`; settings of `config` that are not 0 or "" win over it.

    Raises:
        ModelFileError: the file is unusable, or not even the smallest context fits; the sentence says which.
    """
    started = time.monotonic()
    quiet()
    lib.llama_backend_init()
    path = catalog.resolve(entry)
    header = gguf_header.read(path)
    check_supported(header.text("tokenizer.ggml.model"), header.text("tokenizer.ggml.pre", "default"))
    notes = list(entry.notes)
    gpus = devices.gpus() if config.gpu_layers else []
    if not gpus and config.gpu_layers:
        notes.append("No GPU can be used here, so answers are computed on the CPU.")
    model, on_gpu = _open_model(header, config, bool(gpus), notes)
    form = _wanted_form(entry, config, header, unified, notes)
    try:
        free = sum(gpu.free_bytes for gpu in devices.gpus()) if on_gpu else devices.free_memory_bytes()
        context, form = _open_context(model, header, form, free, notes)
    except ModelFileError:
        lib.llama_model_free(model)
        raise
    backend = LlamaBackend(model, context, form)
    try:
        vocabulary = Vocabulary(model)
        kit = kit_of(path, entry, model=model, context_tokens=form.context_tokens)
        builder = PromptBuilder(kit)
        difference = mismatch(builder.tokenizer, vocabulary)
        if difference:
            notes.append(difference + " Prompts may be read slightly otherwise than in training.")
        _check_special_ids(kit, builder, vocabulary, notes)
        _warm_up(backend, kit)
    except Exception:
        backend.close()
        raise
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
    )
    log.info(
        "model_loaded",
        model=entry.name,
        device=device,
        slots=form.slots,
        context_tokens=form.context_tokens,
        kv_type=form.kv_type,
        unified=form.unified,
        end_tokens=[kit.tokens[i] for i in kit.end_tokens],
        seconds=round(time.monotonic() - started, 2),
        notes=notes,
    )
    return LoadedModel(backend, kit, card, frozenset(kit.end_tokens), tuple(notes), device)


def _open_model(header: GgufHeader, config: InferenceConfig, has_gpu: bool, notes: list[str]) -> tuple[Any, bool]:
    params = lib.llama_model_default_params()
    params.n_gpu_layers = config.gpu_layers if has_gpu else 0  # negative = all
    model = lib.llama_model_load_from_file(str(header.path).encode(), params)
    if not model and has_gpu:
        log.error("gpu_load_failed", library=recent_lines())
        notes.append("The model could not be loaded onto the GPU, so answers are computed on the CPU.")
        has_gpu = False
        params.n_gpu_layers = 0
        model = lib.llama_model_load_from_file(str(header.path).encode(), params)
    if not model:
        raise ModelFileError(f"llama.cpp cannot load {header.path}: {last_words()}", path=str(header.path))
    return model, has_gpu


def _wanted_form(
    entry: CatalogEntry, config: InferenceConfig, header: GgufHeader, unified: bool, notes: list[str]
) -> ContextForm:
    trained = header.trained_context_tokens or entry.context_tokens
    most = entry.max_context_tokens or trained
    wanted = config.context_tokens or entry.context_tokens
    if wanted > most:
        notes.append(f"{entry.title} takes at most {most:,} tokens of context, so {wanted:,} were not granted.")
        wanted = most
    # llama.cpp rounds a stream's cells up to 256; rounding down here keeps its numbers and ours the same.
    context_tokens = max(CELL_PADDING, wanted // CELL_PADDING * CELL_PADDING)
    return ContextForm(
        context_tokens=context_tokens,
        slots=config.slots or entry.slots,
        batch_tokens=config.batch_tokens,
        kv_type=config.kv_type or entry.kv_type,
        threads=config.threads or devices.usable_cores(),
        unified=unified,
        yarn_factor=max(1.0, context_tokens / trained),
    )


def _open_context(
    model: Any, header: GgufHeader, form: ContextForm, free: int | None, notes: list[str]
) -> tuple[Any, ContextForm]:
    """The largest context on the ladder that fits. Linux promises memory it does not have, and a CPU cache that is
    too large gets the process killed when it is zeroed; so size is estimated first, and only then tried."""
    per_token = header.kv_bytes_per_token(KV_BYTES_PER_VALUE[form.kv_type])
    for candidate in _ladder(form):
        if free is not None and candidate.total_tokens * per_token > free * (1 - MEMORY_RESERVE):
            continue
        context = new_context(model, candidate)
        if context is None:
            log.warning("context_refused", tokens=candidate.total_tokens, library=recent_lines(3))
            continue
        if candidate.context_tokens < form.context_tokens:
            notes.append(
                f"Memory was short: a conversation may fill {candidate.context_tokens:,} tokens "
                f"instead of {form.context_tokens:,}."
            )
        if candidate.slots < form.slots:
            notes.append(f"Memory was short: {candidate.slots} conversations at a time instead of {form.slots}.")
        return context, candidate
    need = SMALLEST_CONTEXT * per_token
    raise ModelFileError(
        f"There is not enough memory for {header.path.name}: even one conversation of {SMALLEST_CONTEXT} tokens "
        f"(about {need / 2**20:.0f} MiB) could not be set up. {last_words()}",
        path=str(header.path),
    )


def _ladder(form: ContextForm) -> Iterator[ContextForm]:
    """Ever smaller: context halves down to a useful size, then slots halve, then context again."""
    yield form
    while form.context_tokens > SMALLEST_USEFUL_CONTEXT:
        form = _with_context(form, max(SMALLEST_USEFUL_CONTEXT, form.context_tokens // 2))
        yield form
    while form.slots > 1:
        form = replace(form, slots=form.slots // 2)
        yield form
    while form.context_tokens > SMALLEST_CONTEXT:
        form = _with_context(form, max(SMALLEST_CONTEXT, form.context_tokens // 2))
        yield form


def _with_context(form: ContextForm, context_tokens: int) -> ContextForm:
    rounded = max(CELL_PADDING, context_tokens // CELL_PADDING * CELL_PADDING)
    trained = form.context_tokens / form.yarn_factor
    return replace(form, context_tokens=rounded, yarn_factor=max(1.0, rounded / trained) if form.yarn_factor > 1 else 1)


def _check_special_ids(kit: PromptKit, builder: PromptBuilder, vocabulary: Vocabulary, notes: list[str]) -> None:
    """Each tag the model thinks or calls tools with must be one token for both tokenizers, or is said to be none."""
    tags = [kit.thinking.open, kit.thinking.close] if kit.thinking else []
    for tag in tags:
        theirs = vocabulary.tokenize(tag, parse_special=True)
        ours = builder.tokenizer.encode_scaffold(tag)
        if theirs != ours:
            raise ModelFileError(f"The tag {tag} is token {ours} here but {theirs} for llama.cpp.")
        if len(ours) != 1:
            notes.append(f"{tag} is not one token of this model; it is recognised by its text.")
    ends = {kit.tokens[i] for i in kit.end_tokens}
    if "<|im_end|>" in kit.special_ids and "<|im_end|>" not in ends:
        raise ModelFileError("<|im_end|> is a token of this model but does not end its answers; the file is damaged.")


def _warm_up(backend: LlamaBackend, kit: PromptKit) -> None:
    """One forward over every slot: allocates the largest graph now, and shows that logits are finite."""
    batch = Batch(backend.max_batch_tokens)
    token = np.array([kit.bos_id if kit.bos_id is not None else kit.end_tokens[0]], np.int32)
    for slot in range(backend.num_slots):
        batch.add(slot, token, 0, wants_logits=True)
    backend.forward(batch)
    if not np.isfinite(backend.logits()).all():
        raise EngineError("The model's first forward gave numbers that are not finite.")
    for slot in range(backend.num_slots):
        backend.remove_range(slot, 0)


def with_kit_key(card: ModelCard, key: str) -> ModelCard:
    """The card once the registry has stored the kit."""
    return msgspec.structs.replace(card, prompt_kit=key)
