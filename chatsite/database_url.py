"""DATABASE_URL to Django's terms, and a database that cannot be reached to one sentence."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from inference.errors import ConfigError

EXAMPLE = "postgresql://user:password@host:5432/name"


def parse_database_url(url: str) -> dict[str, Any]:
    """NAME, USER, PASSWORD, HOST, PORT and OPTIONS (the query: sslmode and other libpq parameters).

    Raises:
        ConfigError: it is not the address of a Postgres database. The sentence never repeats the password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"DATABASE_URL must look like {EXAMPLE}; its host or port is not one.") from None
    if parts.scheme not in ("postgres", "postgresql"):
        raise ConfigError(f"DATABASE_URL must look like {EXAMPLE}, not begin with {parts.scheme or 'nothing'!r}.")
    name = unquote(parts.path.lstrip("/"))
    if not name:
        raise ConfigError(f"DATABASE_URL must look like {EXAMPLE}; the name is missing.")
    return {
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }
