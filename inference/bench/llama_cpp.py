"""llama.cpp's own programs, to compare with: built from the source that llama-cpp-python comes with, run and read.

So both sides are the same llama.cpp, with the same CMAKE_ARGS. Owns the build folder (under STATE_DIR) and the
processes it starts; knows nothing of our engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import httpx

from inference.errors import ConfigError
from inference.llama import wheel
from inference.native_build import Record

PROGRAMS = ("llama-batched-bench", "llama-server")
START_SECONDS = 300.0
STOP_SECONDS = 15.0
CELL_PADDING = 256  # llama.cpp rounds the context of a sequence up to this

_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_COMMON": "ON",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be downloaded
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_CURL": "OFF",
}


@dataclass(frozen=True)
class Programs:
    """Where the two programs are."""

    batched_bench: Path
    server: Path

    @classmethod
    def inside(cls, folder: Path) -> Programs:
        """Of a build folder, or of its bin. Raises ConfigError: they are not there."""
        for place in (folder, folder / "bin"):
            paths = [place / name for name in PROGRAMS]
            if all(path.is_file() for path in paths):
                return cls(*(path.absolute() for path in paths))
        raise ConfigError(f"{folder} does not hold {' and '.join(PROGRAMS)}.")

    @property
    def can_sample_on_device(self) -> bool:
        said = subprocess.run([self.server, "--help"], capture_output=True, text=True, timeout=60)
        return "--backend-sampling" in said.stdout


def build(source: Path | None = None) -> Programs:
    """Build them once, or find what an earlier call built; `source` is an sdist at hand, packed or not.

    Raises:
        ConfigError: the source cannot be had or does not build; the end of the tool's output is in the sentence.
    """
    version = importlib.metadata.version("llama-cpp-python")
    record = Record.read()
    cmake_args = wheel.cmake_args({"CMAKE_ARGS": record.cmake_args if record else "", **os.environ})
    key = hashlib.sha256(json.dumps([version, cmake_args, str(source or "")]).encode()).hexdigest()[:12]
    home = Path(os.environ.get("STATE_DIR") or "var").absolute() / "llama.cpp"
    folder = home / f"{version}-{key}"
    try:
        return Programs.inside(folder / "build")
    except ConfigError:
        folder.mkdir(parents=True, exist_ok=True)
    tree = _unpacked(source or _download(version, home), folder)
    cmake = _cmake(home)
    print(f"Building {' and '.join(PROGRAMS)} {version} in {folder}; this takes some minutes, once.", file=sys.stderr)
    configure = [cmake, "-S", str(tree), "-B", str(folder / "build")]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    _call([*configure, *(f"-D{name}={value}" for name, value in _OPTIONS.items()), *cmake_args])
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 2)
    _call([cmake, "--build", str(folder / "build"), "--parallel", jobs, "--target", *PROGRAMS])
    return Programs.inside(folder / "build")


def _download(version: str, home: Path) -> Path:
    found = next(home.glob(f"llama_cpp_python-{version}.tar.gz"), None)
    if found is None:
        name = "llama-cpp-python"
        _call([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, "-d", str(home),
               f"{name}=={version}"])  # fmt: skip
        found = next(home.glob("llama_cpp_python-*.tar.gz"))
    return found


def _is_plain(member: tarfile.TarInfo) -> bool:
    """A file or folder that stays inside of where it is unpacked."""
    return (member.isfile() or member.isdir()) and not ({"..", "/"} & set(Path(member.name).parts))


def _unpacked(source: Path, folder: Path) -> Path:
    """The folder of llama.cpp itself inside an sdist."""
    if source.is_file():
        with tarfile.open(source) as archive:
            # Python before 3.11.4, which Debian 12 has, knows no filters; what "data" is for is checked here as well.
            safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            archive.extractall(folder, [member for member in archive if _is_plain(member)], **safely)
        source = next(folder.glob("llama_cpp_python-*"))
    for tree in (source / "vendor" / "llama.cpp", source):
        if (tree / "tools" / "batched-bench").is_dir():
            return tree.absolute()
    raise ConfigError(f"{source} holds no source of llama.cpp.")


def _cmake(home: Path) -> str:
    found = shutil.which("cmake")
    if found:
        return found
    binary = home / "cmake" / "cmake" / "data" / "bin" / "cmake"
    if not binary.is_file():
        _call([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(home / "cmake"), "cmake"])
    return str(binary)


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode:
        raise ConfigError(f"{shlex.join(command[:4])} … failed:\n{done.stdout[-2000:]}")


@dataclass(frozen=True, kw_only=True)
class RunForm:
    """What is the same for every program of a comparison. Lengths in tokens, exactly."""

    model: Path
    concurrencies: tuple[int, ...]
    prompt_tokens: int
    max_tokens: int
    kv_type: str
    threads: int
    gpu_layers: int  # -1 = all

    @property
    def tokens_per_stream(self) -> int:
        return -(-(self.prompt_tokens + self.max_tokens + 1) // CELL_PADDING) * CELL_PADDING

    def wider(self, tokens: int) -> RunForm:
        return replace(self, prompt_tokens=self.prompt_tokens + tokens)

    def options(self) -> list[str]:
        total = max(self.concurrencies) * self.tokens_per_stream
        layers = "999" if self.gpu_layers < 0 else str(self.gpu_layers)
        return [
            *("-m", str(self.model), "-c", str(total), "-fa", "on", "-ctk", self.kv_type, "-ctv", self.kv_type),
            *("-t", str(self.threads), "-ngl", layers),
        ]


def run_batched_bench(programs: Programs, form: RunForm) -> list[dict[str, Any]]:
    """Its rows, with our names. Raises ConfigError: it failed, or left a number of streams out."""
    streams = ",".join(map(str, form.concurrencies))
    command = [
        *(str(programs.batched_bench), *form.options(), "--output-format", "jsonl"),
        *("-npp", str(form.prompt_tokens), "-ntg", str(form.max_tokens), "-npl", streams),
    ]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    rows = parse_batched_bench(done.stdout)
    if done.returncode or len(rows) != len(form.concurrencies):
        raise ConfigError(f"llama-batched-bench failed: {(done.stderr or done.stdout)[-2000:]}")
    return rows


def parse_batched_bench(output: str) -> list[dict[str, Any]]:
    """Rows of its JSON lines. Its `t` is prefill and decode of all streams together, so new tokens are over both."""
    rows = []
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        num_new = said["pl"] * said["tg"]
        rows.append(
            {
                "system": "batched-bench",
                "concurrency": said["pl"],
                "output_throughput": num_new / said["t"],
                "decode_throughput": said["speed_tg"],
                "prefill_throughput": said["speed_pp"],
                "total_output_tokens": num_new,
                "duration": said["t"],
            }
        )
    return rows


class LlamaServer:
    """A llama-server of our own, up inside the `with`; `.base_url` is its OpenAI-compatible address."""

    def __init__(self, programs: Programs, form: RunForm, *options: str) -> None:
        self._command = [
            *(str(programs.server), *form.options(), "-np", str(max(form.concurrencies)), "--no-webui"),
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self.base_url = ""

    def __enter__(self) -> LlamaServer:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._process = subprocess.Popen(
            [*self._command, "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self.base_url = f"http://127.0.0.1:{port}/v1"
        try:
            self._await_health(f"http://127.0.0.1:{port}/health")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _await_health(self, url: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with contextlib.suppress(httpx.HTTPError):  # it does not listen yet
                if httpx.get(url, timeout=5.0).status_code == 200:
                    return
            time.sleep(0.1)
        self._log.seek(0)
        raise ConfigError(f"llama-server did not start: {self._log.read()[-2000:].decode('utf-8', 'replace')}")
