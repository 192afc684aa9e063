"""The directory that keeps what must outlive a start: bundled servers' data, secret key, static files, logs.

`STATE_DIR` in the environment names it, for every command alike. Called by settings and the supervisor.
"""

from __future__ import annotations

import os
import secrets
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from chatsite.server_user import has_account, name_of
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
        ConfigError: that is not possible, or it is another user's.
    """
    check_owner(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(f"STATE_DIR {path} cannot be written: {error.strerror}.") from error


def check_owner(path: Path) -> None:
    """Before anything is written: what one user leaves in another's state directory is in the way of its owner's next
    start. `path` need not exist; root then asks whose folder it would lie in.

    Raises:
        ConfigError: it is another user's, or holds files of another.
    """
    me = os.geteuid()
    try:
        if not path.exists():
            owner = next(parent for parent in path.parents if parent.exists()).stat().st_uid
            if me == 0 and owner != 0 and has_account(owner):
                raise ConfigError(
                    f"STATE_DIR {path} would lie in a folder of {name_of(owner)}, and root's files would be in the way "
                    f"there; run this as {name_of(owner)}, or let STATE_DIR name a place of root's own."
                )
            return
        owner = path.stat().st_uid
        foreign = [] if me == 0 else [entry.name for entry in os.scandir(path) if entry.stat().st_uid != me]
    except (PermissionError, NotADirectoryError):
        return  # whoever writes there says what is wrong
    if owner not in (me, 0):
        raise ConfigError(
            f"STATE_DIR {path} belongs to {name_of(owner)}, and what {name_of(me)} writes there would be in the way; "
            f"run this as {name_of(owner)}, or let STATE_DIR name another place."
        )
    if owner == me and foreign:
        raise ConfigError(
            f"STATE_DIR {path} holds files of another user ({', '.join(sorted(foreign)[:3])}), left by an earlier "
            f"start; give them back: sudo chown -R {name_of(me)} {shlex.quote(str(path))}"
        )


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
        check_owner(path)
        raise ConfigError(f"STATE_DIR {path}: {SECRET_KEY_FILE} cannot be read: {error.strerror}.") from error
    check_owner(path)
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
    if not root.exists() and root.is_relative_to(path):
        check_owner(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"STATIC_ROOT {root} cannot be made: {error.strerror}.") from error
    return root
