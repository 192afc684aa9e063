"""All JavaScript of ours stays small: it is sent as it is written, and read by whoever changes it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted([*ROOT.glob("static/**/*.js"), *ROOT.glob("templates/**/*.js")])
MAX_BYTES = 41_500
MAX_LINE_CHARS = 160  # the sum is not to be kept by squeezing


def test_all_scripts_together_stay_within_their_bytes() -> None:
    sizes = {path.name: path.stat().st_size for path in SCRIPTS}
    assert "stream.js" in sizes
    assert "sw.js" in sizes
    assert sum(sizes.values()) < MAX_BYTES, sizes


def test_scripts_are_written_in_lines_one_can_read() -> None:
    lines = [(path.name, line) for path in SCRIPTS for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(name, line) for name, line in lines if len(line) > MAX_LINE_CHARS] == []
