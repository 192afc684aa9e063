"""Regular expressions of a JSON schema, without what the grammar library has not: assertions about what lies around.

Owns the reading of a pattern as far as that takes: escapes, classes and groups. Every function is linear in the
pattern. Knows no schema and no grammar; `grammar.relaxation` uses it.
"""

from __future__ import annotations

import re

_ASSERTION = re.compile(r"\(\?(?:=|!|<=|<!)")
_LOOK_AHEAD = "(?="
_WORD_EDGES = frozenset({"\\b", "\\B"})


def has_assertions(pattern: str) -> bool:
    return without_assertions(pattern) != pattern


def without_assertions(pattern: str) -> str:
    """`pattern` without look-arounds and word edges: it matches all that it did, and more."""
    kept: list[str] = []
    at = 0
    while at < len(pattern):
        end = _end_of_piece(pattern, at)
        piece = pattern[at:end]
        if piece not in _WORD_EDGES and not _ASSERTION.match(piece):
            kept.append(piece)
        elif _ASSERTION.match(piece):
            end = _end_of_group(pattern, at)
        at = end
    return "".join(kept)


def parted(pattern: str) -> tuple[str, ...] | None:
    """Patterns that match together what `pattern` matches: its look-aheads at the beginning, and the rest.

    None where it has assertions of another kind or elsewhere.
    """
    if not pattern.startswith("^" + _LOOK_AHEAD):
        return None
    parts: list[str] = []
    at = 1
    while pattern.startswith(_LOOK_AHEAD, at):
        end = _end_of_group(pattern, at)
        parts.append(f"^(?:{pattern[at + len(_LOOK_AHEAD) : end - 1]})")
        at = end
    parts.append("^" + pattern[at:])
    if any(has_assertions(part) for part in parts) or "|" in _outermost(pattern[at:]):
        return None
    return tuple(parts)


def _end_of_piece(pattern: str, at: int) -> int:
    """Behind the escape, the class, the opening of an assertion or the character that begins at `at`."""
    if pattern[at] == "\\":
        return min(at + 2, len(pattern))
    if pattern[at] == "[":
        return _end_of_class(pattern, at)
    match = _ASSERTION.match(pattern, at)
    return match.end() if match else at + 1


def _end_of_class(pattern: str, at: int) -> int:
    at += 2 if pattern.startswith("[^", at) else 1
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return min(at + 1, len(pattern))


def _end_of_group(pattern: str, at: int) -> int:
    depth = 0
    while at < len(pattern):
        end = _end_of_piece(pattern, at)
        depth += pattern[at] == "("
        depth -= pattern[at] == ")"
        at = end
        if not depth:
            break
    return at


def _outermost(pattern: str) -> str:
    """The characters that stand in no group, no class and no escape."""
    found: list[str] = []
    at = depth = 0
    while at < len(pattern):
        end = _end_of_piece(pattern, at)
        depth += pattern[at] == "("
        depth -= pattern[at] == ")"
        if not depth and end == at + 1:
            found.append(pattern[at])
        at = end
    return "".join(found)
