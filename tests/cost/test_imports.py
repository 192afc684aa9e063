"""What an import costs grows with the file, whatever is in it, and no farther than a cap that is named.

Everything but storing, which has a limit of its own: as many conversations and messages as the site takes.
"""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from chatsite.transfer import checking, importing, opening
from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.foreign import tree
from chatsite.transfer.foreign.citations import without_citations
from chatsite.transfer.foreign.open_webui import _without_details
from tests.cost.meter import assert_bounded, cpu_seconds, filled
from tests.web.conftest import site  # noqa: F401  (a fixture)

MS_PER_KB = 4.0
SIZES = (8_192, 131_072)


def _read(data: bytes) -> int:
    """As an import does, as far as the records."""
    num_read = 0
    try:
        for value in opening.values(data):
            reader = importing._reader_of(value.data)
            if reader is not None:
                try:
                    checking.checked(reader.read(value.data, Counter()))
                except (ImportRefused, ValueError, RecursionError):
                    continue
                num_read += 1
    except opening.Broken:
        pass
    return num_read


def _said(role: str, text: str) -> dict[str, Any]:
    return {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}, "create_time": 1.7e9}


def _mapping(size: int, node: Callable[[int], dict[str, Any]]) -> bytes:
    number = max(2, size // len(json.dumps(node(10))))
    return json.dumps([{"title": "x", "mapping": {f"n{n}": node(n) for n in range(number)}}]).encode()


SHAPES: dict[str, Callable[[int], bytes]] = {
    "one long answer in many parts": lambda size: _mapping(
        size, lambda n: {"parent": f"n{n - 1}", "message": _said("assistant" if n else "user", "x" * 50)}
    ),
    "a chain without texts": lambda size: _mapping(size, lambda n: {"parent": f"n{n - 1}", "message": None}),
    "a chain with answers far apart": lambda size: _mapping(
        size, lambda n: {"parent": f"n{n - 1}", "message": _said("assistant", "x") if n % 50 == 0 else None}
    ),
    "a circle": lambda size: _mapping(size, lambda n: {"parent": f"n{n + 1}" if n % 100 else "n0"}),
    "all children of one": lambda size: _mapping(size, lambda n: {"parent": "n0", "message": _said("user", "x")}),
    "no parents": lambda size: _mapping(size, lambda n: {"parent": f"p{n}", "message": _said("user", "x")}),
    "many small ones": lambda size: filled(b'{"mapping": {}},', size).join((b"[", b"]")),
    "things that are none": lambda size: b"[" + filled(b"{},", size) + b"{}]",
    "brackets": lambda size: b"[" * size,
    "objects in objects": lambda size: filled(b'{"a":', size),
    "one key again and again": lambda size: b'{"mapping": {}, ' + filled(b'"title": "x", ', size) + b'"a": 1}',
    "keys that differ": lambda size: json.dumps({"mapping": {}, **{f"k{n}": n for n in range(size // 12)}}).encode(),
    "a long title": lambda size: json.dumps([{"mapping": {}, "title": " x" * (size // 2)}]).encode(),
    "a long time": lambda size: json.dumps([{"chat_messages": [], "created_at": "1" * size}]).encode(),
    "a long number": lambda size: b'[{"mapping": {}, "create_time": ' + b"1" * size + b"}]",
    "half characters": lambda size: b'[{"mapping": {}, "title": "' + filled(b"\\ud83d", size) + b'"}]',
    "escapes": lambda size: b'[{"mapping": {}, "title": "' + filled(b"\\\\", size - size % 2) + b'"}]',
    "gaps": lambda size: b"[" + b" " * size + b"]",
    "a string without an end": lambda size: b'["' + b"x" * size,
}


@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
def test_reading_a_file_is_linear(make: Callable[[int], bytes], site: Callable[..., None]) -> None:
    site(max_conversation_messages=100_000)
    assert_bounded(make, _read, ms_per_kb=MS_PER_KB, sizes=SIZES)


TEXTS = {
    "details without an end": '<details type="reasoning">',
    "details without a head": '<details type="a" ',
    "details": '<details type="tool_calls" done="true">x</details>',
    "ends": "</details>",
    "gaps": '<details type="a"></details>   ',
    "summaries": '<details type="reasoning"><summary><summary>',
}
MARKS = {
    "begins": "\ue200",
    "begins and words": "\ue200cite\ue202",
    "sources": "\ue202turn0search1",
    "lost sources": "\ue201citeturn0search1turn0",
    "digits": "turn1" + "1" * 40 + "\ue200",
    "spans": "\ue200cite\ue202turn0search1\ue201 ",
    "entities": '\ue200entity\ue202["a","b"]\ue201',
    "brackets": "\u3010",
    "old ones": "\u30101\u2020",
}


@pytest.mark.parametrize("pattern", TEXTS.values(), ids=TEXTS)
def test_taking_out_details_is_linear(pattern: str) -> None:
    assert_bounded(
        lambda size: '<details type="a"' + filled(pattern, size),
        lambda text: _without_details(text, Counter()),
        ms_per_kb=1.0,
        sizes=SIZES,
    )


@pytest.mark.parametrize("pattern", MARKS.values(), ids=MARKS)
def test_taking_out_citations_is_linear(pattern: str) -> None:
    assert_bounded(lambda size: "\ue200" + filled(pattern, size), without_citations, ms_per_kb=1.0, sizes=SIZES)


def test_a_fence_and_a_time_are_linear() -> None:
    assert_bounded(lambda size: filled("`` ` ", size), tree.fenced, ms_per_kb=1.0, sizes=SIZES)
    assert_bounded(lambda size: filled("2026-01-01T", size), tree.moment, ms_per_kb=0.1, sizes=SIZES)


def _zip(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def _opened(data: bytes) -> int:
    return sum(len(content) for _name, content in opening.files(io.BytesIO(data)))


def test_a_zip_that_unpacks_without_end_stops_at_the_cap(site: Callable[..., None]) -> None:
    site(max_import_bytes=2_000_000)
    bomb = _zip({"a.json": b" " * 50_000_000})
    many = _zip({f"{n}.json": b" " * 500_000 for n in range(20)})
    overlapping = many.replace(b"7.json", b"8.json")  # two names for one place

    def refuse(data: bytes) -> None:
        with pytest.raises(ImportRefused, match=r"larger than 1\.91 MB|damaged"):
            _opened(data)

    for data in (bomb, many, overlapping):
        assert len(data) < 100_000
        assert cpu_seconds(lambda data=data: refuse(data)) < 0.5  # type: ignore[misc]


def test_zips_in_zips_are_no_conversations() -> None:
    data = b"[]"
    for _depth in range(20):
        data = _zip({"inner.json": data, "inner.zip": data})
    assert _opened(data) < len(data)
    with pytest.raises(opening.Broken):
        list(opening.values(data))


def test_a_zip_with_very_many_names_costs_what_its_names_cost(site: Callable[..., None]) -> None:
    def names(size: int) -> bytes:
        return _zip({f"{n}.txt": b"" for n in range(size // 110)})

    assert_bounded(names, _opened, ms_per_kb=MS_PER_KB, sizes=SIZES)
