"""Rows as the lines of a CSV file that is safe to open: no text in it becomes a formula of the reader's spreadsheet.

Called by whatever gives tables away: the audit log, the analytics, a person's own usage. Knows none of them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def lines(rows: Iterable[Iterable[object]]) -> str:
    """One line per row. A text that begins like a formula gets an apostrophe before it; numbers stay as they are."""
    file = io.StringIO()
    csv.writer(file).writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue()


def _cell(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value
