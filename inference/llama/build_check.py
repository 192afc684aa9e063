"""`python -m inference.llama.build_check`: does this build of llama.cpp compute on this machine?

A library built for instructions that the machine or its compiler gets wrong does not say so: it kills its process. So a
process of its own loads the small model that comes with the requirements, in the way of a worker, and decodes; on the
CPU, and on the GPU where the build can use one. This one looks how it ended and says what to do. Ends with 0 or 1.
"""

from __future__ import annotations

import os
import subprocess
import sys

from inference import native_build
from inference.native_build import Record

MODEL = "smollm2-135m"
SECONDS = 300.0
HERE = "--here"


def failure(code: int, said: str, cmake_args: str | None) -> str:
    """The sentence for a decode that ended with `code` and whose last output was `said`."""
    if code < 0:
        end = f"llama.cpp was {native_build.name_of(code)} at its first decode."
        return f"{end} {native_build.cure(code, cmake_args)}".strip()
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), native_build.name_of(code))
    return f"llama.cpp does not run here: {last}"


def main(arguments: list[str]) -> int:
    if arguments == [HERE]:
        decode()
        return 0
    command = [sys.executable, "-m", "inference.llama.build_check", HERE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=SECONDS)
    except subprocess.TimeoutExpired:
        print(f"llama.cpp gave no answer of a small model in {SECONDS:.0f} s.", file=sys.stderr)
        return 1
    if done.returncode == 0:
        return 0
    record = Record.read()
    cmake_args = os.environ.get("CMAKE_ARGS", record.cmake_args if record else None)
    print(failure(done.returncode, done.stderr or done.stdout, cmake_args), file=sys.stderr)
    return 1


def decode() -> None:
    """Load the model and test it, as a worker does. A bad build ends this process."""
    from inference import config
    from inference.catalog import Catalog
    from inference.llama import device, loader

    for layers in ("0", "-1") if device.gpus() else ("0",):
        small = {"WORKER_SLOTS": "1", "WORKER_CONTEXT_TOKENS": "512", "WORKER_GPU_LAYERS": layers}
        settings = config.load(small)
        loader.load(Catalog().entry(MODEL), settings).backend.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
