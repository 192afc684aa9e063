"""What this machine gives a process: CPU cores and memory, within the limits of its container.

Owns these measurements; needs no library. Called by the loader through `llama.device`, and by `manage.py up`.
"""

from __future__ import annotations

import math
import os
from pathlib import Path


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
