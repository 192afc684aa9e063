"""Addresses of servers in settings: read as they were meant, or refused by name.

A password with an unquoted `#`, `/`, `?` or `@` ends the address early, and what is left is a valid one of another
server (`redis://:p#w@host` is Redis on this machine). Called by whoever reads REDIS_URL or DATABASE_URL.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from inference.errors import ConfigError

QUOTING = (
    "percent-encode what is special in a user name or password: # as %23, / as %2F, ? as %3F, @ as %40 and [ as %5B"
)


def split(name: str, url: str, *, schemes: tuple[str, ...], example: str) -> SplitResult:
    """The parts of `url`, the value of setting `name`.

    Raises:
        ConfigError: it is no address of these schemes, or would be misread. The sentence never repeats a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in schemes:
        shown = repr(scheme) if separator and re.fullmatch(r"[\w+.-]+", scheme) else "nothing"
        raise ConfigError(f"{name} must look like {example}, not begin with {shown}.")
    if re.search(r"[\x00-\x1f\x7f]", url):  # they would be left out without a word
        raise ConfigError(f"{name} must look like {example}, without line breaks and other control characters.")
    server, _, query = rest.partition("?")
    authority, _, path = server.partition("/")
    strays = [part for part in query.split("&") if "@" in part and not re.match(r"[\w.]+=", part)]
    if "#" in url or authority.count("@") > 1 or "@" in path or strays:
        raise ConfigError(f"{name} must look like {example}; {QUOTING}.")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  it is read, and checked, only when it is asked for
    except ValueError:
        raise ConfigError(f"{name} must look like {example}; its host or port is not one; {QUOTING}.") from None
    return parts
