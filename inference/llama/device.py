"""What the forward pass can run on here: GPUs that the library sees, and what `machine` tells of cores and memory.

Owns these measurements; knows no model. Called by the loader; `python -m inference.llama.device` prints the number of
GPUs, for a process that must not load the library itself.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from llama_cpp import _ggml
from llama_cpp import llama_cpp as lib

from inference.machine import free_memory_bytes as free_memory_bytes
from inference.machine import usable_cores as usable_cores

_GPU_TYPES = (1, 2)  # GGML_BACKEND_DEVICE_TYPE_GPU, _IGPU


@dataclass(frozen=True)
class Gpu:
    name: str
    free_bytes: int
    total_bytes: int


def gpus() -> list[Gpu]:
    """The GPUs that the library can compute on; empty for a CPU build or without a driver."""
    lib.llama_backend_init()
    if not lib.llama_supports_gpu_offload():
        return []
    ggml = _ggml.libggml
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    base = ctypes.CDLL(str(_ggml.libggml_base_path / "libggml-base.so"))
    base.ggml_backend_dev_type.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_description.argtypes = [ctypes.c_void_p]
    base.ggml_backend_dev_description.restype = ctypes.c_char_p
    base.ggml_backend_dev_memory.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_size_t),
    ]
    found = []
    for index in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(index)
        if base.ggml_backend_dev_type(device) in _GPU_TYPES:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            base.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            name = base.ggml_backend_dev_description(device).decode("utf-8", "replace")
            found.append(Gpu(name, free.value, total.value))
    return found


if __name__ == "__main__":
    print(len(gpus()))
