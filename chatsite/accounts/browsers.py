"""What a browser calls itself, in words that its owner knows: "Firefox on Linux". A hint for people, never a proof."""

from __future__ import annotations

MAX_CHARS = 60  # of a name that is none of these, as programs have

# Of each list the first that is found: browsers also name those that they want to be taken for.
BROWSERS = (
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Vivaldi/", "Vivaldi"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("CriOS/", "Chrome"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
SYSTEMS = (
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("Windows", "Windows"),
    ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


def described(user_agent: str) -> tuple[str, str]:
    """The browser and the system it says it runs on; each empty where it says none that is known."""
    return _first(BROWSERS, user_agent), _first(SYSTEMS, user_agent)


def _first(names: tuple[tuple[str, str], ...], user_agent: str) -> str:
    return next((name for mark, name in names if mark in user_agent), "")
