"""What the forward pass can run on here: GPUs that the library sees, usable CPU cores, free memory.

Owns these measurements; knows no model. Called by the loader.
"""

from __future__ import annotations

import ctypes
import math
import os
from dataclasses import dataclass
from pathlib import Path

from llama_cpp import _ggml
from llama_cpp import llama_cpp as lib

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


def usable_cores() -> int:
    """Cores this process may use: its affinity, and the container's quota (threads beyond it only spin)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fields = _read("/sys/fs/cgroup/cpu.max").split()
    if len(fields) == 2 and fields[0].isdigit() and int(fields[1]) > 0:
        cores = min(cores, max(1, math.ceil(int(fields[0]) / int(fields[1]))))
    return max(1, cores)


def free_memory_bytes() -> int | None:
    """Memory that can still be taken without swapping or being killed; None where it cannot be told."""
    available: int | None = None
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.current").strip()
    if limit.isdigit() and used.isdigit():
        cached = sum(
            int(line.split()[1])
            for line in _read("/sys/fs/cgroup/memory.stat").splitlines()
            if line.startswith(("inactive_file ", "active_file "))
        )
        left = max(0, int(limit) - int(used) + cached)
        available = left if available is None else min(available, left)
    return available


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # not Linux, or another cgroup version: the caller does without
        return ""
