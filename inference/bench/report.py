"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLUMNS = (
    ("concurrency", "streams", "{:d}"),
    ("completed", "done", "{:d}"),
    ("failed", "failed", "{:d}"),
    ("output_throughput", "new tok/s", "{:.1f}"),
    ("request_throughput", "req/s", "{:.2f}"),
    ("median_ttft_ms", "TTFT p50 ms", "{:.1f}"),
    ("p99_ttft_ms", "p99", "{:.1f}"),
    ("median_itl_ms", "ITL p50 ms", "{:.2f}"),
    ("p99_itl_ms", "p99", "{:.2f}"),
    ("median_e2el_ms", "E2E p50 ms", "{:.0f}"),
    ("cached_tokens_share", "cached", "{:.0%}"),
)


def table(rows: list[dict[str, Any]]) -> str:
    """Right-aligned columns under their names, one line a row."""
    lines = [[title for _, title, _ in COLUMNS]]
    lines += [[form.format(row[name]) for name, _, form in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines)


def write_json(rows: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
