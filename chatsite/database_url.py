"""DATABASE_URL to Django's terms, and a database that cannot be reached to one sentence."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote

import psycopg

from inference import address
from inference.errors import ConfigError

EXAMPLE = "postgresql://user:password@host:5432/name"


# SQLSTATE of a connection that is refused or has broken; without any, there was no server to give one.
CONNECTION_STATES = ("08", "28", "57P", "53300", "3D000")


def is_connection_trouble(error: BaseException) -> bool:
    """Whether the database could not be reached, rather than that it refused what was asked of it."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    found = [cause for cause in causes if isinstance(cause, psycopg.Error)]
    if not found:
        return any(type(cause).__name__ in ("OperationalError", "InterfaceError") for cause in causes)
    state = found[0].sqlstate
    return isinstance(found[0], psycopg.OperationalError | psycopg.InterfaceError) and (
        state is None or state.startswith(CONNECTION_STATES)
    )


def parse_database_url(url: str) -> dict[str, Any]:
    """NAME, USER, PASSWORD, HOST, PORT and OPTIONS (the query: sslmode and other libpq parameters).

    Raises:
        ConfigError: it is not the address of a Postgres database. The sentence never repeats the password.
    """
    parts = address.split("DATABASE_URL", url, schemes=("postgres", "postgresql"), example=EXAMPLE)
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ConfigError(f"DATABASE_URL must look like {EXAMPLE}; the name is missing.")
    return {
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }
