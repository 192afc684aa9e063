"""`python -m inference.inspect MODEL.gguf`: what a model file is, and the memory it will take. Reads its header alone.

Owns the report, as a table and as JSON; the facts come from `gguf_header`, the arithmetic from `memory`. Needs neither
llama.cpp nor Redis. Catalog names and hub addresses work too, where their file is on this machine.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference import catalog, config
from inference.catalog import FALLBACK_TEMPLATE, FILES_OWN, TEMPLATES, Catalog, CatalogEntry
from inference.errors import ConfigError, InferenceError, ModelFileError
from inference.model_files import gguf_header, lora, memory_estimate
from inference.model_files.gguf_header import GgufHeader
from inference.model_files.lora import AppliedAdapter
from inference.model_files.memory_estimate import MemoryEstimate

MAX_CONTEXT_TOKENS, MAX_SLOTS = 1_048_576, 256

# Every so many layers one goes without RoPE: the graphs of llama.cpp do so by themselves, no metadata says it.
_NOPE_STEPS = {"smollm3": 4, "afmoe": 4}
_TOKEN_TYPES = {2: "unknown", 3: "control", 4: "user_defined", 5: "unused", 6: "byte"}
_SPECIAL_TYPES = (2, 3, 4)
# llama.cpp's names of the keys -> the usual ones.
_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "eom": "eom",
    "unknown": "unk",
    "seperator": "sep",
    "padding": "pad",
    "cls": "cls",
    "mask": "mask",
    "fim_pre": "fim_prefix",
    "fim_suf": "fim_suffix",
    "fim_mid": "fim_middle",
}
_ROLES_BY_TEXT = {
    "<|im_start|>": "turn_start",
    "<|im_end|>": "turn_end",
    "<think>": "think_open",
    "</think>": "think_close",
    "<tool_call>": "tool_call_open",
    "</tool_call>": "tool_call_close",
    "<tool_response>": "tool_response_open",
    "</tool_response>": "tool_response_close",
}


def report(
    header: GgufHeader, entry: CatalogEntry, estimate: MemoryEstimate, adapters: Sequence[AppliedAdapter] = ()
) -> dict[str, Any]:
    """All there is to say, as it goes into JSON.

    Raises:
        ModelFileError: the metadata contradicts itself.
    """
    heads, kv_heads = header.heads, header.kv_heads
    num_heads, num_kv_heads = max(heads, default=0), max(kv_heads, default=0)
    own_template = header.text("tokenizer.chat_template")
    return {
        "path": str(header.path),
        "name": header.text("general.name") or entry.title,
        "architecture": header.architecture,
        "file_type": header.quantization,
        "file_bytes": header.file_bytes,
        "parameters": sum(tensor.num_values for tensor in header.tensors),
        "block_count": header.num_layers,
        "embedding_length": header.number_here("embedding_length"),
        "feed_forward_length": max(header.per_layer("feed_forward_length"), default=0),
        "head_count": num_heads,
        "head_count_kv": num_kv_heads,
        "head_dim": header.head_dims[0],
        "gqa_ratio": num_heads / num_kv_heads if num_kv_heads else None,
        "gqa_saving": 1 - sum(kv_heads) / sum(heads) if sum(heads) else None,
        "nope_layers": nope_layers(header),
        "tied_embeddings": header.tensor("output.weight") is None,
        "rope": _rope(header),
        "context_length": header.trained_context_tokens,
        "vocab_size": header.num_vocab_tokens,
        "tokenizer": {
            "model": header.text("tokenizer.ggml.model"),
            "pre": header.text("tokenizer.ggml.pre"),
            "adds_bos": header.get("tokenizer.ggml.add_bos_token", bool),
        },
        "special_tokens": special_tokens(header),
        "template": template_facts(own_template) if own_template else None,
        "template_override": _override(entry),
        "template_used": entry.own_template or (FILES_OWN if own_template else FALLBACK_TEMPLATE),
        "quantization": dict(Counter(tensor.type_name for tensor in header.tensors).most_common()),
        "num_tensors": len(header.tensors),
        "adapters": [_adapter(found) for found in adapters],
        "memory_bytes": estimate.as_dict(),
    }


def nope_layers(header: GgufHeader) -> list[int]:
    """Layers without RoPE, counted from 0."""
    step = header.number_here("no_rope_layer_step", _NOPE_STEPS.get(header.architecture, 0))
    return [layer for layer in range(header.num_layers) if (layer + 1) % step == 0] if step > 0 else []


def special_tokens(header: GgufHeader) -> list[dict[str, Any]]:
    """Every token that is not ordinary text, by id; `role` is "" for those nothing here gives a meaning."""
    texts = header.strings("tokenizer.ggml.tokens")
    types = header.get("tokenizer.ggml.token_type", list) or []
    roles: dict[int, str] = {}
    # An id may have several roles (pad is often eos); the first of the list names it.
    for name, role in reversed(_ROLES.items()):
        if (token := header.get(f"tokenizer.ggml.{name}_token_id", int)) is not None:
            roles[token] = role
    found = []
    for token, text in enumerate(texts):
        kind = types[token] if token < len(types) and isinstance(types[token], int) else 1
        if kind in _SPECIAL_TYPES or token in roles:
            role = roles.get(token) or _ROLES_BY_TEXT.get(text, "")
            found.append({"id": token, "text": text, "type": _TOKEN_TYPES.get(kind, "normal"), "role": role})
    return found


def template_facts(template: str) -> dict[str, Any]:
    """What a chat template knows, told by the names it uses."""
    return {
        "num_chars": len(template),
        "system": bool(re.search(r"['\"]system['\"]|system_message|messages\[0\]", template)),
        "thinking": bool(re.search(r"enable_thinking|</?think>|reasoning_content|/no_think", template)),
        "tools": bool(re.search(r"\b(xml_|python_)?tools\b", template)),
        "generation_prompt": "add_generation_prompt" in template,
    }


def _adapter(found: AppliedAdapter) -> dict[str, Any]:
    return {
        "path": str(found.header.path),
        "name": found.name,
        "scale": found.scale,
        "rank": found.rank,
        "alpha": found.alpha or None,
        "num_pairs": found.num_pairs,
        "bytes": found.num_bytes,
    }


def _override(entry: CatalogEntry) -> dict[str, Any] | None:
    if not entry.own_template:
        return None
    text = (TEMPLATES / Path(entry.own_template).name).read_text(encoding="utf-8")
    return {"file": entry.own_template, **template_facts(text)}


def _rope(header: GgufHeader) -> dict[str, Any]:
    arch = header.architecture
    return {
        "base": header.get(f"{arch}.rope.freq_base", float) or 10_000.0,
        "dimensions": header.number_here("rope.dimension_count", header.head_dims[0]),
        "scaling": header.text(f"{arch}.rope.scaling.type") or "none",
        "factor": header.get(f"{arch}.rope.scaling.factor", float),
        "original_context_length": header.number_here("rope.scaling.original_context_length") or None,
    }


def table(facts: dict[str, Any], form: argparse.Namespace) -> str:
    """`facts` for people."""
    rope, sizes = facts["rope"], facts["memory_bytes"]
    lines = [
        ("file", f"{facts['path']} ({_mib(facts['file_bytes'])})"),
        ("model", f"{facts['name']}, {facts['architecture']}, {facts['parameters'] / 1e9:.2f} G parameters"),
        ("layers", f"{facts['block_count']} of width {facts['embedding_length']:,}, {_nope(facts)}"),
        ("heads", _heads(facts)),
        ("RoPE", f"base {rope['base']:,.0f}, scaling {rope['scaling']}{_factor(rope)}"),
        ("context", f"{facts['context_length']:,} tokens in training"),
        ("vocabulary", _vocabulary(facts)),
        ("template", _template(facts)),
        ("tensors", f"{facts['num_tensors']}: " + ", ".join(f"{n} {t}" for t, n in facts["quantization"].items())),
        *[("adapter", _adapter_line(found)) for found in facts["adapters"]],
        ("", ""),
        *_token_lines(facts["special_tokens"]),
        ("", ""),
        ("memory", f"{form.slots} x {form.context:,} tokens, KV {form.kv}, on a {form.device.upper()}"),
        ("  weights", _mib(sizes["weights"])),
        *([("  reordered", f"{_mib(sizes['repacked'])} copy for this CPU")] if sizes["repacked"] else []),
        *([("  adapters", _mib(sizes["adapters"]))] if sizes["adapters"] else []),
        ("  KV cache", f"{_mib(sizes['kv'])}, {sizes['kv_per_token'] / 1024:.1f} KiB a token"),
        ("  compute", _mib(sizes["compute"] + sizes["outputs"])),
        ("  runtime", _mib(sizes["runtime"])),
        ("  total", _mib(sizes["total"])),
    ]
    return "\n".join(f"{name:<13}{value}".rstrip() for name, value in lines)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / memory_estimate.MIB:,.1f} MiB"


def _nope(facts: dict[str, Any]) -> str:
    layers = facts["nope_layers"]
    if not layers:
        return "all with RoPE"
    return f"{len(layers)} without RoPE ({', '.join(map(str, layers))}, counted from 0)"


def _heads(facts: dict[str, Any]) -> str:
    said = f"{facts['head_count']} of {facts['head_dim']}, {facts['head_count_kv']} with keys and values"
    if (facts["gqa_ratio"] or 1) > 1:
        said += f" ({facts['gqa_ratio']:g} to 1, which saves {facts['gqa_saving']:.0%} of the KV cache)"
    return said


def _factor(rope: dict[str, Any]) -> str:
    return f" x {rope['factor']:g}" if rope["factor"] else ""


def _vocabulary(facts: dict[str, Any]) -> str:
    tokenizer = facts["tokenizer"]
    tied = "tied to the output" if facts["tied_embeddings"] else "apart from the output"
    return f"{facts['vocab_size']:,} tokens ({tokenizer['model']}, {tokenizer['pre'] or 'default'}), embeddings {tied}"


def _template(facts: dict[str, Any]) -> str:
    parts = []
    for name in ("template", "template_override"):
        found = facts[name]
        if found is None:
            if name == "template":
                parts.append("none in the file" + ("" if facts["template_override"] else "; ChatML would be used"))
            continue
        known = [word for word in ("system", "thinking", "tools", "generation_prompt") if found[word]]
        where = found.get("file", "in the file")
        parts.append(f"{where}: {', '.join(known).replace('_', ' ') or 'nothing beyond messages'}")
    used = facts["template_used"]
    return "; ".join([*parts, "the file's is used" if used == FILES_OWN else f"{used} is used"])


def _adapter_line(found: dict[str, Any]) -> str:
    said = f"{found['name']} x {found['scale']:g}, rank {found['rank']}, over {found['num_pairs']} tensors"
    return f"{said} ({_mib(found['bytes'])}, {found['path']})"


def _token_lines(tokens: list[dict[str, Any]]) -> list[tuple[str, str]]:
    shown = [token for token in tokens if token["role"] or token["type"] == "user_defined"]
    lines = [
        ("tokens" if number == 0 else "", f"{t['id']:>7}  {t['text']!r:<24} {t['type']:<13} {t['role']}".rstrip())
        for number, t in enumerate(shown)
    ]
    rest = len(tokens) - len(shown)
    return [*lines, ("", f"         and {rest} more of type control")] if rest else lines


def _adapters(header: GgufHeader, entry: CatalogEntry, paths: Sequence[str]) -> tuple[AppliedAdapter, ...]:
    """The entry's, then those of the command line. Raises ModelFileError."""
    for source in entry.adapters:
        if not catalog.is_at_hand(source):
            raise ModelFileError(
                f"An adapter of {entry.name} is not on this machine; `manage.py pullmodel {entry.name}` fetches it."
            )
    own = catalog.resolve_adapters(entry, header, model_dir=config.load().model_dir)
    return *own, *(lora.check(gguf_header.read(Path(path).expanduser()), header) for path in paths)


def _model(name: str) -> tuple[GgufHeader, CatalogEntry]:
    """Raises: ConfigError, ModelFileError."""
    found = Catalog.of(config.load())
    path = Path(name).expanduser()
    if name not in found.entries and path.suffix != ".gguf" and (path.exists() or "/" in name) and ":" not in name:
        header = gguf_header.read(path)  # says what it is, whatever it is called
        return header, catalog.entry_of_path(path)
    entry = found.entry(name)
    if not catalog.is_at_hand(entry.source):
        raise ModelFileError(f"The file of {name} is not on this machine; `manage.py pullmodel {name}` fetches it.")
    header = found.resolve(entry)
    return header, catalog.completed(entry, header)


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m inference.inspect", description="What a model file is, and the memory it will take."
    )
    parser.add_argument("model", metavar="MODEL", help="path of a .gguf, catalog name, or owner/repo:file.gguf")
    parser.add_argument("--context", type=int, help="tokens of one conversation (default: the catalog's)")
    parser.add_argument("--slots", type=int, help="conversations at once (default: the catalog's)")
    parser.add_argument("--kv", choices=tuple(memory_estimate.KV_BYTES_PER_VALUE), help="type of keys and values")
    parser.add_argument("--device", choices=("cpu", "gpu"), help="default: a GPU where there is one")
    parser.add_argument(
        "--adapter", metavar="PATH", action="append", default=[], help="a LoRA adapter's .gguf; may come several times"
    )
    parser.add_argument("--json", action="store_true", help="an object for programs")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    form = _parser().parse_args(arguments)
    try:
        header, entry = _model(form.model)
        form.context = entry.context_tokens if form.context is None else form.context
        form.slots = entry.slots if form.slots is None else form.slots
        form.kv = form.kv or entry.kv_type
        form.device = form.device or ("gpu" if _has_gpu() else "cpu")
        if not 1 <= form.context <= MAX_CONTEXT_TOKENS or not 1 <= form.slots <= MAX_SLOTS:
            raise ConfigError(f"--context must be 1 to {MAX_CONTEXT_TOKENS} and --slots 1 to {MAX_SLOTS}.")
        adapters = _adapters(header, entry, form.adapter)
        estimate = memory_estimate.estimate(
            header,
            context_tokens=form.context,
            slots=form.slots,
            kv_type=form.kv,
            on_gpu=form.device == "gpu",
            adapter_bytes=sum(found.num_bytes for found in adapters),
        )
        facts = report(header, entry, estimate, adapters)
    except InferenceError as error:
        print(error.message, file=sys.stderr)
        return 1
    form_facts = {"context_tokens": form.context, "slots": form.slots, "kv_type": form.kv, "device": form.device}
    try:
        print(json.dumps({**facts, "form": form_facts}, indent=2) if form.json else table(facts, form), flush=True)
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
