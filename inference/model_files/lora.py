"""What a LoRA adapter file must be to be laid over a model, as far as the headers of both tell.

llama.cpp refuses some wrong adapters with an error and ends the process over others, so all is checked before it sees
one. Called by the catalog and the inspector once both files were found; pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inference.errors import ModelFileError
from inference.model_files.gguf_header import GgufHeader, TensorFacts

_A, _B = ".lora_a", ".lora_b"
_FLOAT32 = 6  # the GGUF type of a value; llama.cpp ends the process over another one here
_STRING = 8
# What matrices can be multiplied in; whole numbers and doubles cannot.
_UNMULTIPLIED = ("I8", "I16", "I32", "I64", "F64")


@dataclass(frozen=True)
class AppliedAdapter:
    """A checked adapter. `scale` is the catalog's, `alpha` 0 leaves the file's own scaling out."""

    header: GgufHeader
    scale: float
    rank: int
    alpha: float
    num_pairs: int

    @property
    def name(self) -> str:
        return self.header.text("general.name") or self.header.path.stem

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes or 0 for tensor in self.header.tensors)


def check(header: GgufHeader, base: GgufHeader, scale: float = 1.0) -> AppliedAdapter:
    """
    Raises:
        ModelFileError: `header` is no LoRA adapter, or not one for the model of `base`; one sentence says why.
    """
    for key in ("general.type", "adapter.type", "general.architecture"):
        if header.value_types.get(key, _STRING) != _STRING:
            raise _bad(header, f"gives {key} as something other than text")
    kind, adapter_kind = header.text("general.type"), header.text("adapter.type")
    if kind != "adapter":
        raise _bad(header, f"is no adapter: its general.type is {kind or 'missing'}")
    if adapter_kind != "lora":
        raise _bad(header, f"is an adapter of type {adapter_kind or 'unknown'}; only LoRA can be used")
    if header.architecture != base.architecture:
        raise _bad(header, f"is for a {header.architecture} model, and {base.path.name} is a {base.architecture} model")
    alpha = header.get("adapter.lora.alpha", float) or 0.0
    if header.value_types.get("adapter.lora.alpha", _FLOAT32) != _FLOAT32 or not math.isfinite(alpha):
        raise _bad(header, "gives an adapter.lora.alpha that is no 32-bit number")
    if "adapter.alora.invocation_tokens" in header.metadata:
        raise _bad(header, "begins to work at certain tokens only (aLoRA), which workers here do not serve")
    halves: dict[str, dict[str, TensorFacts]] = {}
    for tensor in header.tensors:
        name, dot, half = tensor.name.rpartition(".")
        if dot + half in (_A, _B):
            halves.setdefault(name, {})[dot + half] = tensor
        elif not tensor.name.endswith("_norm.weight"):  # llama.cpp leaves these out, as most adapters can bear
            raise _bad(header, f"has a tensor {tensor.name[:80]!r} that is no half of a LoRA pair")
    if not halves:
        raise _bad(header, "holds no weights")
    for name, pair in halves.items():
        _check_pair(header, base, name, pair)
    rank = max(pair[_B].shape[0] for pair in halves.values())
    return AppliedAdapter(header, scale, rank, alpha, len(halves))


def _check_pair(header: GgufHeader, base: GgufHeader, name: str, pair: dict[str, TensorFacts]) -> None:
    shown = repr(name[:80])
    if len(pair) < 2:
        raise _bad(header, f"has only one half of the pair {shown}")
    a, b = pair[_A], pair[_B]
    target = base.tensor(name)
    if target is None:
        raise _bad(header, f"changes {shown}, which {base.path.name} does not have")
    for half in (a, b):
        if half.num_bytes is None or half.type_name in _UNMULTIPLIED:
            raise _bad(header, f"holds {half.name[:80]!r} as {half.type_name}, which cannot be multiplied")
    if name == "token_embd.weight":
        # Laid out the other way round; and over tied embeddings llama.cpp would use it for the output too, and end.
        if base.tensor("output.weight") is None:
            raise _bad(header, f"changes {shown}, which in {base.path.name} are the output's weights as well")
        fits = _is_flat(a, b, target) and b.shape[1] == target.shape[0] and a.shape[1] == target.shape[1]
        fits = fits and a.shape[0] == b.shape[0]
    else:
        fits = len(a.shape) == len(b.shape) == len(target.shape) >= 2
        fits = fits and a.shape[0] == target.shape[0] and b.shape[1] == target.shape[1] and a.shape[1] == b.shape[0]
        fits = fits and a.shape[2:] == b.shape[2:] == target.shape[2:]
    if not fits:
        raise _bad(
            header,
            f"does not fit {base.path.name}: for {shown} of shape {target.shape} it has {a.shape} and {b.shape}",
        )


def _is_flat(*tensors: TensorFacts) -> bool:
    return all(len(tensor.shape) == 2 for tensor in tensors)


def _bad(header: GgufHeader, what: str) -> ModelFileError:
    return ModelFileError(f"The adapter file {header.path} {what}.", path=str(header.path))
