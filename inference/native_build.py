"""How the installed llama.cpp was built, and the one command that mends a build which does not suit this machine.

Owns the record of the build and these sentences. Starts nothing and needs the standard library alone: called while the
environment is made (`llama.wheel`), by the check at the end of that (`llama.build_check`), and by `manage.py up` when a
worker dies or a GPU cannot be used.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD = Path(sys.prefix) / "llama.json"  # inside the virtual environment
BUILD_SIGNALS = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT})


@dataclass(frozen=True)
class Record:
    """How the installed llama.cpp was built: `kind` compares, `cmake_args` are what the operator gave."""

    kind: str
    cmake_args: str

    @classmethod
    def read(cls, path: Path = RECORD) -> Record | None:
        """None where llama.cpp was not installed by `make install`, or its check has not passed."""
        try:
            match json.loads(path.read_text()):
                case {"kind": str(kind), "cmake_args": str(cmake_args)}:
                    return cls(kind, cmake_args)
        except (OSError, ValueError):
            pass
        return None

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)) + "\n")


def wants_amx(cmake_args: str) -> bool:
    """Whether an operator asks for AMX, which a build leaves out otherwise."""
    return bool(re.search(r"GGML_AMX\w*(:\w+)?=(on|1|true|yes|y)\b", cmake_args, re.IGNORECASE))


def name_of(code: int) -> str:
    """How a process ended by its exit status, as `subprocess` gives it: a signal has a name."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has none
        return f"killed by signal {-code}"


def no_gpu(num_gpus: int, cmake_args: str | None) -> str:
    """What `up` says where there are GPUs and llama.cpp sees none."""
    with_cuda = f"{cmake_args or ''} -DGGML_CUDA=on".strip()
    seen = "A GPU is" if num_gpus == 1 else f"{num_gpus} GPUs are"
    if "GGML_CUDA" in (cmake_args or ""):
        way = "it is built for them, so see whether the driver works: nvidia-smi"
    else:
        way = f"to build one that can: CMAKE_ARGS={shlex.quote(with_cuda)} make install"
    return f"{seen} here that this build of llama.cpp cannot use, so answers are computed on the CPU; {way}"


def cure(code: int, cmake_args: str | None) -> str:
    """What to do about a process that ended with `code`; "" for an ending that is no crash.

    `cmake_args` are what the operator had llama.cpp built with, None where nobody knows.
    """
    if -code == signal.SIGKILL:
        return "Usually memory was short; WORKER_CONTEXT_TOKENS and WORKER_SLOTS make a worker smaller."
    if -code not in BUILD_SIGNALS:
        return ""
    return f"This build of llama.cpp does not suit this machine; to build another: {_another_build(cmake_args)}"


def _another_build(cmake_args: str | None) -> str:
    if cmake_args is None:
        return "make install"
    if wants_amx(cmake_args):
        return "CMAKE_ARGS= make install"
    if "GGML_NATIVE" in cmake_args:
        return f"CC=clang CXX=clang++ CMAKE_ARGS={shlex.quote(cmake_args)} make install"
    return f"CMAKE_ARGS={shlex.quote((cmake_args + ' -DGGML_NATIVE=OFF').strip())} make install"
