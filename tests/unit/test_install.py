"""`make install`: which llama.cpp it builds and takes again, what it does about a crash, whose files it leaves.

The environment's python is a script that notes what is asked of pip and makes a wheel out of nothing; all of ours runs.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inference import native_build
from inference.llama import wheel
from inference.native_build import Record

ROOT = Path(__file__).resolve().parents[2]
IS_ROOT = os.geteuid() == 0
NOBODY = 65534

PYTHON = f"""#!/bin/sh
echo "$*" >> "$NOTES"
case "$*" in
"-m inference.llama.wheel"*) exec {sys.executable} "$@" ;;
"-m inference.llama.build_check") [ -z "$CRASHING" ] || LD_PRELOAD="$CRASHING" exec {sys.executable} "$@" ;;
"-m pip wheel"*)
    while [ "$1" != -w ]; do shift; done
    echo "$CMAKE_ARGS" > "$2/llama_cpp_python-0.3.36-py3-none-any.whl" ;;
"-m pip install --no-deps --no-index"*)
    for wheel; do :; done
    cp "$wheel" "$NOTES.wheel" ;;
esac
"""


class Environment:
    """A virtual environment whose pip only notes; `home` holds the wheels that are kept."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.venv = folder / "venv"
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin" / "python").write_text(PYTHON)
        (self.venv / "bin" / "python").chmod(0o755)
        self.stamp = self.venv / "installed"
        self.home = home
        self._notes = folder / "notes"

    def install(self, **env: str) -> subprocess.CompletedProcess[str]:
        self._notes.write_text("")
        clean = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
        known = {"VENV": str(self.venv), "HOME": str(self.home), "NOTES": str(self._notes), "CRASHING": ""}
        return subprocess.run(
            ["sh", ".ci/install"], cwd=ROOT, env=clean | known | env, capture_output=True, text=True, timeout=120
        )

    def asked(self, what: str) -> int:
        return sum(line.startswith(what) for line in self._notes.read_text().splitlines())

    @property
    def num_built(self) -> int:
        return self.asked("-m pip wheel")

    @property
    def installed_args(self) -> str:
        """The CMAKE_ARGS that the installed wheel was built with."""
        return Path(f"{self._notes}.wheel").read_text()

    @property
    def kept(self) -> list[Path]:
        return sorted((self.home / ".cache" / "smolfleet" / "wheels").glob("*/*.whl"))


needs_compiler = pytest.mark.skipif(not wheel.compiler("CXX", os.environ), reason="no C++ compiler")


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    (tmp_path / "home").mkdir()
    return Environment(tmp_path, tmp_path / "home")


@needs_compiler
def test_other_cmake_args_build_llama_again_and_nothing_else(environment: Environment) -> None:
    first = environment.install()
    assert first.returncode == 0, first.stderr
    assert (environment.num_built, environment.asked("-m pip install --require-hashes")) == (1, 2)
    assert environment.install().stdout == ""
    assert environment.install(CMAKE_ARGS="-DGGML_CUDA=on").returncode == 0
    assert (environment.num_built, environment.asked("-m pip install --require-hashes")) == (1, 0)
    assert "-DGGML_CUDA=on" in environment.installed_args
    assert environment.stamp.exists()
    assert environment.install().stdout == "", "what was chosen once stays chosen"
    assert environment.install(CMAKE_ARGS="").returncode == 0
    assert environment.num_built == 0, "the first wheel was kept"
    assert "-DGGML_CUDA=on" not in environment.installed_args


@needs_compiler
def test_wheel_is_taken_again_by_another_environment_of_the_same_kind_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, env, num_built in (
        ("one", {}, 1),
        ("same", {}, 0),
        ("gpu", {"CMAKE_ARGS": "-DGGML_CUDA=on"}, 1),
        ("flags", {"CXXFLAGS": "-O1"}, 1),
    ):
        environment = Environment(tmp_path / name, home)
        assert environment.install(**env).returncode == 0
        assert environment.num_built == num_built, name
    assert len(environment.kept) == 3


@needs_compiler
def test_pip_builds_without_its_cache_for_that_forgets_how_a_wheel_was_built(environment: Environment) -> None:
    environment.install()
    assert environment.asked("-m pip wheel --no-deps --no-cache-dir --require-hashes") == 1
    assert not any("llama-cpp-python" in line for line in Path(f"{environment._notes}").read_text().splitlines())


@needs_compiler
def test_environment_of_an_earlier_version_whose_build_nobody_recorded_builds_anew(environment: Environment) -> None:
    environment.install()
    shutil.rmtree(environment.home / ".cache")
    (environment.venv / "llama.json").unlink()
    assert environment.install().returncode == 0
    assert environment.num_built == 1


CRASH = """
#include <signal.h>
int ggml_backend_sched_graph_compute_async(void *a, void *b) { raise(SIGSEGV); return 0; }
"""


@pytest.fixture(scope="session")
def crashing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library before which llama.cpp's own computing is never reached: its first decode is a SIGSEGV."""
    command = wheel.compiler("C", os.environ)
    if not command or sys.platform != "linux":
        pytest.skip("no C compiler to make a crashing library with, or no LD_PRELOAD")
    folder = tmp_path_factory.mktemp("crash")
    (folder / "crash.c").write_text(CRASH)
    subprocess.run([*command, "-shared", "-fPIC", "crash.c", "-o", "crash.so"], cwd=folder, check=True)
    return str(folder / "crash.so")


@pytest.mark.model
def test_build_that_crashes_is_named_taken_out_and_not_kept(environment: Environment, crashing: str) -> None:
    environment.install(CMAKE_ARGS="-DX=1")
    built = environment.kept
    failed = environment.install(CMAKE_ARGS="-DX=1 -DY=2", CRASHING=crashing)
    assert failed.returncode != 0
    assert "llama.cpp was killed by SIGSEGV at its first decode." in failed.stderr
    assert "CMAKE_ARGS='-DX=1 -DY=2 -DGGML_NATIVE=OFF' make install" in failed.stderr
    assert not environment.stamp.exists()
    assert environment.asked("-m pip uninstall --yes --quiet llama-cpp-python") == 1
    assert environment.kept == built, "what failed was not kept"
    failed = environment.install(CMAKE_ARGS="-DX=1", CRASHING=crashing)
    assert failed.returncode != 0
    assert environment.num_built == 0
    assert environment.kept == [], "a kept wheel that crashes goes too"
    mended = environment.install(CMAKE_ARGS="-DX=1")
    assert mended.returncode == 0
    assert environment.num_built == 1
    assert environment.stamp.exists()


@pytest.mark.parametrize(
    ("code", "cmake_args", "sentence"),
    [
        (-11, "", "CMAKE_ARGS=-DGGML_NATIVE=OFF make install"),
        (-4, "-DGGML_CUDA=on", "CMAKE_ARGS='-DGGML_CUDA=on -DGGML_NATIVE=OFF' make install"),
        (-11, "-DGGML_AMX_INT8=ON", "CMAKE_ARGS= make install"),
        (-11, "-DGGML_NATIVE=OFF -DGGML_AMX_INT8=OFF", "CC=clang CXX=clang++"),
        (-11, None, "to build another: make install"),
        (-9, "", "WORKER_CONTEXT_TOKENS"),
    ],
)
def test_cure_is_one_command_that_changes_something(code: int, cmake_args: str | None, sentence: str) -> None:
    assert sentence in native_build.cure(code, cmake_args)


def test_ending_that_is_no_crash_has_no_cure() -> None:
    assert native_build.cure(1, "") == native_build.cure(-15, "") == ""


# -- which arguments cmake gets


@pytest.fixture
def x86(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def fake_compiler(folder: Path, name: str, *, accepts: str, says: str = "#define A 1") -> str:
    """A compiler that takes those flags which the shell pattern `accepts` matches."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\nfor flag; do case "$flag" in {accepts}) ;; -mno-*|-march=*) exit 1 ;; esac; done\necho "{says}"\n'
    )
    path.chmod(0o755)
    return str(path)


AMX_OFF = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def test_amx_is_left_out_for_c_and_cxx_beside_what_the_operator_wants(x86: None, tmp_path: Path) -> None:
    both = fake_compiler(tmp_path, "cc", accepts="-mno-amx-*")
    env = {"CC": both, "CXX": both, "CMAKE_ARGS": '-DGGML_CUDA=on -D CMAKE_C_FLAGS="-O3 -g"', "CXXFLAGS": "-pipe"}
    assert wheel.cmake_args(env) == [
        "-DLLAVA_BUILD=OFF",
        "-DGGML_CUDA=on",
        f"-DCMAKE_C_FLAGS=-O3 -g {AMX_OFF}",
        f"-DCMAKE_CXX_FLAGS=-pipe {AMX_OFF}",
    ]


def test_a_compiler_is_given_only_flags_that_it_knows(x86: None, tmp_path: Path) -> None:
    old = fake_compiler(tmp_path, "old", accepts="nothing")
    half = fake_compiler(tmp_path, "half", accepts="-mno-amx-tile")
    args = wheel.cmake_args({"CC": old, "CXX": half})
    assert args == ["-DLLAVA_BUILD=OFF", "-DCMAKE_CXX_FLAGS=-mno-amx-tile"]


def test_another_architecture_is_given_no_flags_of_x86(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    both = fake_compiler(tmp_path, "cc", accepts="-mno-amx-*")
    assert wheel.cmake_args({"CC": both, "CXX": both}) == ["-DLLAVA_BUILD=OFF"]


def test_whoever_asks_for_amx_gets_it(x86: None) -> None:
    assert wheel.cmake_args({"CMAKE_ARGS": "-DGGML_AMX_INT8=ON"}) == ["-DLLAVA_BUILD=OFF", "-DGGML_AMX_INT8=ON"]


@needs_compiler
@pytest.mark.skipif(platform.machine().lower() not in wheel.X86, reason="AMX is x86's")
def test_flags_leave_amx_out_whatever_the_machine_has() -> None:
    """The compiler's own word for a processor with AMX; the flags stand before what ggml adds, as in its build."""
    command = wheel.compiler("CXX", os.environ)
    flags = next(arg for arg in wheel.cmake_args({"PATH": os.environ["PATH"]}) if arg.startswith("-DCMAKE_CXX_FLAGS="))
    options = [*flags.split("=", 1)[1].split(), "-march=sapphirerapids", "-x", "c++", "-dM", "-E", os.devnull]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    assert "__AVX512VNNI__" in done.stdout
    assert "__AMX" not in done.stdout


@pytest.mark.parametrize("name", ["worker-cpu", "worker-cuda"])
def test_images_are_built_without_amx(name: str) -> None:
    """On whatever machine they are built, and of whatever architecture: by cmake's own options."""
    (args,) = re.findall(r'^ENV CMAKE_ARGS="(.*)"$', (ROOT / "docker" / f"{name}.Dockerfile").read_text(), re.MULTILINE)
    off = {"-DGGML_NATIVE=OFF", "-DGGML_AMX_TILE=OFF", "-DGGML_AMX_INT8=OFF", "-DGGML_AMX_BF16=OFF"}
    assert off <= set(args.split())
    assert not native_build.wants_amx(args)


def test_kind_tells_arguments_compilers_and_machines_apart(tmp_path: Path) -> None:
    one = fake_compiler(tmp_path, "one", accepts="*")
    other = fake_compiler(tmp_path, "other", accepts="*", says="#define A 2")
    kinds = [
        wheel.kind({"CXX": one, "CC": one}, "1"),
        wheel.kind({"CXX": other, "CC": one}, "1"),
        wheel.kind({"CXX": one, "CC": one, "CMAKE_ARGS": "-DGGML_CUDA=on"}, "1"),
        wheel.kind({"CXX": one, "CC": one, "CXXFLAGS": "-O1"}, "1"),
        wheel.kind({"CXX": one, "CC": one}, "2"),
    ]
    assert len(set(kinds)) == len(kinds)
    gone = wheel.kind({"CXX": str(tmp_path / "gone"), "CC": one}, "1")
    assert wheel.is_same_kind(kinds[0], gone), "what is installed stays when its compiler has gone"
    assert not wheel.is_same_kind(kinds[2], gone)


def test_record_of_a_build_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    Record("k", "-DX=1").write(tmp_path / "llama.json")
    assert Record.read(tmp_path / "llama.json") == Record("k", "-DX=1")
    (tmp_path / "llama.json").write_text('{"kind": 1}')
    assert Record.read(tmp_path / "llama.json") is None
    assert Record.read(tmp_path / "nothing") is None


# -- whose files it leaves


def owner(folder: Path, **as_user: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(ROOT / ".ci" / "owner"), "."], cwd=folder, capture_output=True, text=True, **as_user
    )


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")
def test_root_leaves_no_files_in_a_persons_checkout(tmp_path: Path) -> None:
    assert owner(tmp_path).returncode == 0
    os.chown(tmp_path, NOBODY, NOBODY)
    refused = owner(tmp_path)
    assert refused.returncode == 1
    assert f"{tmp_path} belongs to nobody" in refused.stderr
    assert refused.stderr.count("\n") == 1
    os.chown(tmp_path, 54_321, 54_321)
    assert owner(tmp_path).returncode == 0, "a container's root in a checkout of its host: nobody here is in its way"


@pytest.mark.skipif(not IS_ROOT, reason="only root gives files away")
def test_install_as_root_writes_nothing_into_a_persons_environment(environment: Environment) -> None:
    os.chown(environment.venv, NOBODY, NOBODY)
    refused = environment.install()
    assert refused.returncode == 1
    assert "belongs to nobody" in refused.stderr
    assert os.listdir(environment.venv) == ["bin"]
