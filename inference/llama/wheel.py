"""`python -m inference.llama.wheel current|possible|install`: the wheel of llama-cpp-python that fits this machine.

Owns with which arguments it is built, where wheels are kept, and the record of what is installed. pip keeps a wheel
that it built under its source alone, so one of other CMAKE_ARGS, of another compiler, or one that crashes here would
come back from its cache for ever. So pip's cache of wheels is passed by: a wheel is kept in a folder named by all that
made it, and only once it has computed on this machine.

AMX is left out of a build by default: GCC before 13 drops the stores of llama.cpp's tile configuration, and the first
decode dies of a general protection fault at `ldtilecfg`. -DGGML_AMX_INT8=ON in CMAKE_ARGS asks for it.

`.ci/install` runs this in an environment that may hold nothing but pip: the standard library alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inference.native_build import Record, wants_amx

PACKAGE = "llama-cpp-python"
OWN_ARGS = ("-DLLAVA_BUILD=OFF",)  # before the operator's, which may say otherwise
WITHOUT_AMX = ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16")
X86 = ("x86_64", "amd64", "i386", "i686")
# Of each language: the variable that names its compiler, those that are tried without it, the variable of its flags.
LANGUAGES = {
    "C": ("CC", ("cc", "gcc", "clang"), "CFLAGS"),
    "CXX": ("CXX", ("c++", "g++", "clang++"), "CXXFLAGS"),
}


NO_COMPILER = f"{PACKAGE} must be built and there is no C++ compiler; on Debian and Ubuntu install the package g++."


class WheelError(Exception):
    """There is no wheel that fits; the sentence says why."""


# -- how it is built


def cmake_args(env: Mapping[str, str]) -> list[str]:
    """The operator's CMAKE_ARGS with what we add: no AMX, as far as each compiler knows these flags."""
    args = [*OWN_ARGS, *_joined(shlex.split(env.get("CMAKE_ARGS", "")))]
    if platform.machine().lower() not in X86 or wants_amx(" ".join(args)):
        return args
    for language, (_, _, variable) in LANGUAGES.items():
        name = f"CMAKE_{language}_FLAGS"
        command = compiler(language, env)
        is_known = _accepts(command, *WITHOUT_AMX)
        flags = WITHOUT_AMX if is_known else [flag for flag in WITHOUT_AMX if _accepts(command, flag)]
        if not flags:
            continue
        given = [match[1] for arg in args if (match := re.match(rf"-D{name}(?::\w+)?=(.*)", arg, re.DOTALL))]
        args = [arg for arg in args if not re.match(rf"-D{name}(:\w+)?=", arg)]
        before = given[-1] if given else env.get(variable, "")  # cmake reads the variable only where nothing is given
        args.append(f"-D{name}={' '.join([*before.split(), *flags])}")
    return args


def compiler(language: str, env: Mapping[str, str]) -> list[str]:
    """The command that cmake will choose; [] where there is none."""
    variable, names, _ = LANGUAGES[language]
    for arg in _joined(shlex.split(env.get("CMAKE_ARGS", ""))):
        if match := re.match(rf"-DCMAKE_{language}_COMPILER(?::\w+)?=(.+)", arg):
            return [match[1]]
    if given := shlex.split(env.get(variable, "")):
        return given if shutil.which(given[0], path=env.get("PATH")) else []
    return next(([name] for name in names if shutil.which(name, path=env.get("PATH"))), [])


def kind(env: Mapping[str, str], version: str) -> str:
    """What tells builds apart: version, arguments, and the compiler with the machine it would build for.

    The last part is empty without a compiler: then nobody can tell.
    """
    given = _joined(shlex.split(env.get("CMAKE_ARGS", "")))
    return f"{version}-{_digest(given)}-{_compiler_part(env)}"


def is_same_kind(installed: str, wanted: str) -> bool:
    """Whether nothing is to be built. A compiler that has gone since changes nothing."""
    return installed == wanted or (wanted.endswith("-") and installed.startswith(wanted))


def _compiler_part(env: Mapping[str, str]) -> str:
    command = compiler("CXX", env)
    if not command:
        return ""
    target = [] if "GGML_NATIVE=OFF" in env.get("CMAKE_ARGS", "").upper() else ["-march=native"]
    for options in (target, []):  # what it predefines tells its version and the instructions it would use
        facts = _run([*command, *options, "-x", "c++", "-dM", "-E", os.devnull])
        if facts is not None:
            return _digest([*sorted(facts.splitlines()), *cmake_args(env)])
    return _digest([_run([*command, "--version"]) or " ".join(command), *cmake_args(env)])


def _accepts(command: Sequence[str], *flags: str) -> bool:
    return bool(command) and _run([*command, "-Werror", *flags, "-x", "c", "-E", os.devnull]) is not None


def _run(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _joined(args: Sequence[str]) -> list[str]:
    """`-D NAME=VALUE` as one argument."""
    joined: list[str] = []
    for arg in args:
        if joined and joined[-1] == "-D":
            joined[-1] += arg
        else:
            joined.append(arg)
    return joined


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


# -- where wheels are kept


@dataclass(frozen=True)
class Shelf:
    """Wheels that passed the check, one folder for each kind; of this user alone."""

    folder: Path

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Shelf | None:
        """None where this user has no cache: `sudo` may keep HOME, and what root leaves there is in its owner's way."""
        home = env.get("XDG_CACHE_HOME") or (f"{env['HOME']}/.cache" if env.get("HOME") else "")
        folder = Path(home, "smolfleet", "wheels")
        there = next((path for path in (folder, *folder.parents) if path.exists()), None)
        if not folder.is_absolute() or there is None or there.stat().st_uid != os.geteuid():
            return None
        return cls(folder) if os.access(there, os.W_OK | os.X_OK) else None

    def find(self, wanted: str) -> Path | None:
        """A wheel of that kind; without a compiler any of these arguments, the newest first."""
        if wanted.endswith("-"):
            found = sorted(self.folder.glob(f"{wanted}*/*.whl"), key=lambda path: path.stat().st_mtime, reverse=True)
        else:
            found = sorted((self.folder / wanted).glob("*.whl"))
        return found[0] if found else None

    def keep(self, wheel: Path, wanted: str) -> None:
        """Put it there, whole or not at all; where that cannot be, the next environment builds its own."""
        place = self.folder / wanted
        try:
            place.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place) as half:
                (Path(half) / wheel.name).write_bytes(wheel.read_bytes())
                (Path(half) / wheel.name).rename(place / wheel.name)
        except OSError as error:
            print(f"The wheel of llama.cpp could not be kept in {place}: {error.strerror}.", file=sys.stderr)


# -- installing it


class Installation:
    """`python` is the environment's; `record` lies inside it; `requirements` is the lock that pins the version."""

    def __init__(self, python: str, record: Path, requirements: Path, env: Mapping[str, str]) -> None:
        self._python = python
        self._record = record
        self._block = _pinned(requirements)
        self._env = dict(env)
        known = Record.read(record)
        if "CMAKE_ARGS" not in self._env and known is not None:
            self._env["CMAKE_ARGS"] = known.cmake_args  # what was chosen once stays chosen
        self._installed = known.kind if known is not None else ""
        self._kind = kind(self._env, self._block.split("==")[1].split()[0])

    @property
    def is_current(self) -> bool:
        return is_same_kind(self._installed, self._kind)

    @property
    def is_possible(self) -> bool:
        """Whether it can be had without a compiler that is not there."""
        shelf = Shelf.of(self._env)
        return self.is_current or bool(compiler("CXX", self._env)) or bool(shelf and shelf.find(self._kind))

    def install(self) -> None:
        """Put the wheel in unless it is there, see that it computes, and record it.

        Raises:
            WheelError: it cannot be built, or does not compute here; it is not installed then, and not kept.
        """
        with tempfile.TemporaryDirectory(prefix="smolfleet-wheel-") as folder:
            shelf = Shelf.of(self._env)
            kept = shelf.find(self._kind) if shelf and not self.is_current else None
            built = self._build(Path(folder)) if not self.is_current and kept is None else None
            if (wheel := kept or built) is not None:
                self._record.unlink(missing_ok=True)
                self._pip("install", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
            if subprocess.run([self._python, "-m", "inference.llama.build_check"], env=self._env).returncode != 0:
                self._drop(kept)
                raise WheelError("llama.cpp was taken out again; what to do is said above.")
            if shelf is not None and built is not None:
                shelf.keep(built, self._kind)
            if wheel is not None:
                Record(kept.parent.name if kept else self._kind, self._env.get("CMAKE_ARGS", "")).write(self._record)

    def _build(self, folder: Path) -> Path:
        if not self.is_possible:
            raise WheelError(NO_COMPILER)
        args = shlex.join(cmake_args(self._env))
        print(f"Building llama.cpp takes some minutes, once for each kind (CMAKE_ARGS={args}).", flush=True)
        (folder / "requirements.txt").write_text(self._block)
        # Without pip's cache: it would give back a wheel that was built otherwise.
        options = ("--no-deps", "--no-cache-dir", "--require-hashes", "-w", str(folder))
        self._pip("wheel", *options, "-r", str(folder / "requirements.txt"), CMAKE_ARGS=args)
        built = sorted(folder.glob("*.whl"))
        if not built:
            raise WheelError(f"pip built no wheel of {PACKAGE}; its message is above.")
        return built[0]

    def _drop(self, kept: Path | None) -> None:
        """A wheel that failed is not met again, neither in the environment nor among those that are kept."""
        if kept is not None:
            kept.unlink(missing_ok=True)
        self._record.unlink(missing_ok=True)
        self._pip("uninstall", "--yes", "--quiet", PACKAGE)

    def _pip(self, *arguments: str, **env: str) -> None:
        if subprocess.run([self._python, "-m", "pip", *arguments], env=self._env | env).returncode != 0:
            raise WheelError(f"pip {arguments[0]} of {PACKAGE} failed; its message is above.")


def _pinned(requirements: Path) -> str:
    """The lock's lines of the package: its version and hashes."""
    found = re.search(rf"^{PACKAGE}==(?:.*\\\n)*.*$", requirements.read_text(), re.MULTILINE)
    if found is None:
        raise WheelError(f"{requirements} does not pin {PACKAGE}.")
    return found[0] + "\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m inference.llama.wheel", description="See the module.")
    parser.add_argument("deed", choices=("current", "possible", "install"))
    parser.add_argument("--python", default=sys.executable, help="of the environment it goes into")
    parser.add_argument("--record", type=Path, default=Path(sys.prefix) / "llama.json")
    parser.add_argument("--requirements", type=Path, required=True)
    form = parser.parse_args(arguments)
    try:
        installation = Installation(form.python, form.record, form.requirements, os.environ)
        if form.deed == "current":
            return 0 if installation.is_current else 1
        if form.deed == "possible" and not installation.is_possible:
            raise WheelError(NO_COMPILER)
        if form.deed == "install":
            installation.install()
    except WheelError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
