"""LoRA adapters over a loaded model. `model_files.lora` has checked them; the loader calls, before the engine starts.

They belong to the context as a whole, never to one sequence: one worker serves one model with these adapters, so KV
that it cached stays right. llama.cpp frees them with the model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib

from inference.errors import ModelFileError
from inference.llama.native_log import last_words
from inference.model_files.lora import AppliedAdapter


def open_all(model: Any, adapters: Sequence[AppliedAdapter]) -> list[Any]:
    """The library's handles, in order. Before the context is made, which reserves room for them.

    Raises:
        ModelFileError: the library refuses one.
    """
    handles = []
    for adapter in adapters:
        path = adapter.header.path
        handle = lib.llama_adapter_lora_init(model, str(path).encode())
        if not handle:
            raise ModelFileError(f"llama.cpp cannot load the adapter {path}: {last_words()}", path=str(path))
        handles.append(handle)
    return handles


def lay_over(context: Any, handles: Sequence[Any], adapters: Sequence[AppliedAdapter]) -> None:
    """Have the context use them all, each at its scale."""
    if handles:
        pointers = (lib.llama_adapter_lora_p_ctypes * len(handles))(*handles)
        scales = (ctypes.c_float * len(handles))(*(adapter.scale for adapter in adapters))
        lib.llama_set_adapters_lora(context, pointers, len(handles), scales)
