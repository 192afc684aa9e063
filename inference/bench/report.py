"""Results as a table for people, as JSON for programs, and as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inference.errors import ConfigError

# Shown where any row has it, in this order.
COLUMNS = (
    ("system", "system", "{}"),
    ("workload", "workload", "{}"),
    ("request_rate", "rate/s", "{}"),
    ("concurrency", "streams", "{:d}"),
    ("completed", "done", "{:d}"),
    ("failed", "failed", "{:d}"),
    ("output_throughput", "new tok/s", "{:.1f}"),
    ("request_throughput", "req/s", "{:.2f}"),
    ("request_goodput", "good/s", "{:.2f}"),
    ("median_queue_ms", "queue p50 ms", "{:.1f}"),
    ("median_ttft_ms", "TTFT p50 ms", "{:.1f}"),
    ("p99_ttft_ms", "p99", "{:.1f}"),
    ("median_itl_ms", "ITL p50 ms", "{:.2f}"),
    ("p99_itl_ms", "p99", "{:.2f}"),
    ("median_e2el_ms", "E2E p50 ms", "{:.0f}"),
    ("cached_tokens_share", "cached", "{:.0%}"),
    ("history_cached_share", "of history", "{:.1%}"),
    ("forward_ms_per_step", "forward ms", "{:.2f}"),
    ("sampling_ms_per_step", "sampling", "{:.2f}"),
    ("host_ms_per_step", "host", "{:.2f}"),
    ("ratio_to_batched_bench", "of batched-bench", "{:.3f}"),
    ("ratio_to_llama_server", "of llama-server", "{:.2f}"),
)

PANELS = (
    ("new tokens per second", (("output_throughput", "-"),)),
    ("time to first token, ms", (("median_ttft_ms", "-"), ("p99_ttft_ms", ":"))),
    ("time between tokens, ms", (("median_itl_ms", "-"), ("p99_itl_ms", ":"))),
)


def table(rows: list[dict[str, Any]]) -> str:
    """Right-aligned columns under their names, one line a row; under it the turns of conversations, and errors."""
    columns = [column for column in COLUMNS if any(column[0] in row for row in rows)]
    if all(row.get("request_rate", "inf") == "inf" for row in rows):
        columns = [column for column in columns if column[0] != "request_rate"]
    lines = [[title for _, title, _ in columns]]
    lines += [[form.format(row[name]) if name in row else "–" for name, _, form in columns] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in lines]
    for row in rows:
        turns = [f"{row[name]:.1f}" for name in row if name.startswith("median_ttft_ms_turn_")]
        if turns:
            text.append(f"TTFT p50 ms by turn at {row['concurrency']} streams: {'  '.join(turns)}")
        text += [f"failed at {row.get('concurrency')} streams: {error}" for error in row.get("errors", ())]
    return "\n".join(text)


def write_json(rows: list[dict[str, Any]], path: Path, **more: Any) -> None:
    path.write_text(json.dumps({"rows": rows, **more}, indent=1) + "\n", encoding="utf-8")


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Throughput and latencies against streams, or against the rate of an open loop; one colour a system or workload.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("--plot needs the Python package matplotlib, which is not installed here.") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    is_open = any(row.get("request_rate", "inf") != "inf" for row in rows)
    across = "request_rate" if is_open else "concurrency"
    names = list(dict.fromkeys(_name(row) for row in rows))
    figure, axes = pyplot.subplots(1, len(PANELS), figsize=(15, 4.6), layout="constrained")
    for axis, (title, lines) in zip(axes, PANELS):
        for number, name in enumerate(names):
            for field, style in lines:
                points = sorted((row[across], row[field]) for row in rows if _name(row) == name and field in row)
                if points:
                    label = name + (", p99" if style == ":" else ", median" if len(lines) > 1 else "")
                    axis.plot(*zip(*points), style, marker="o", markersize=4, color=f"C{number}", label=label)
        ticks = sorted({row[across] for row in rows})
        if not is_open and len(ticks) > 1:
            axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_title(title)
        axis.set_xlabel("conversations begun per second" if is_open else "streams at once")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize="small")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _name(row: dict[str, Any]) -> str:
    return str(row.get("system") or row.get("workload") or "")
