"""The library's own log: its warnings and errors are kept, and nothing goes to stderr.

Owns the callback, which must live as long as the process. Called by the loader before anything else of the library.
"""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

import llama_cpp.llama_cpp as lib

_WARN, _ERROR = 2, 3  # GGML_LOG_LEVEL_*

_lines: deque[str] = deque(maxlen=200)


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _keep(level: int, text: bytes, _: Any) -> None:
    # Comes from inside a C call, possibly on a thread of the library's: nothing but the append here.
    if level in (_WARN, _ERROR):
        _lines.append(text.decode("utf-8", "replace").strip())


def quiet() -> None:
    """Keep the library's log here from now on; idempotent."""
    lib.llama_log_set(_keep, ctypes.c_void_p(0))


def recent_lines(num: int = 5) -> list[str]:
    """The newest warnings and errors of the library, oldest first."""
    return list(_lines)[-num:]


def last_words() -> str:
    """The newest two lines as one sentence's end."""
    return " ".join(recent_lines(2)) or "it gave no reason."
