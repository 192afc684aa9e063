"""The directory that keeps what must outlive a start: bundled servers' data, secret key, static files, logs.

`STATE_DIR` in the environment names it, for every command alike. Called by settings and the supervisor.
"""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from inference.config import Environment
from inference.errors import ConfigError

SECRET_KEY_FILE = "secret_key"


def of(env: Mapping[str, str], base_dir: Path) -> Path:
    return Path(os.path.abspath(Path(Environment(env).text("STATE_DIR", str(base_dir / "var"))).expanduser()))


def take_flag(arguments: Sequence[str]) -> None:
    """Let `--state-dir` of a command line stand for STATE_DIR in this process and its children."""
    for position, argument in enumerate(arguments):
        if argument == "--state-dir" and position + 1 < len(arguments):
            os.environ["STATE_DIR"] = arguments[position + 1]
        elif argument.startswith("--state-dir="):
            os.environ["STATE_DIR"] = argument.partition("=")[2]


def make(path: Path) -> None:
    """Create it if need be and try to write in it.

    Raises:
        ConfigError: that is not possible.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"STATE_DIR {path} cannot be written: {error.strerror}.") from error


def secret_key(path: Path) -> str:
    """Django's secret key of this state directory, made when it is first asked for. Safe between processes.

    Raises:
        ConfigError: there is none and none can be kept there.
    """
    file = path / SECRET_KEY_FILE
    try:
        return file.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        raise ConfigError(f"STATE_DIR {path}: {SECRET_KEY_FILE} cannot be read: {error.strerror}.") from error
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor, fresh = tempfile.mkstemp(dir=path)  # mode 600
        with os.fdopen(descriptor, "w") as out:
            out.write(secrets.token_urlsafe(50))
        try:
            os.link(fresh, file)  # the first process wins, whole; the others read its key
        except FileExistsError:
            pass
        finally:
            os.unlink(fresh)
    except OSError as error:
        raise ConfigError(f"SECRET_KEY is not set and STATE_DIR {path} cannot keep one: {error.strerror}.") from error
    return file.read_text().strip()


def static_root(env: Environment, path: Path) -> Path:
    """Where collected static files lie: `STATIC_ROOT`, else below the state directory."""
    root = Path(env.text("STATIC_ROOT", str(path / "static")))
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"STATIC_ROOT {root} cannot be made: {error.strerror}.") from error
    return root
