"""Which JSON schemas can be followed, and the grammar of one that can.

Owns how blank space may stand in an answer, and the sentences that say what is wrong with a
schema. Knows no model: web nodes `check` before anything is submitted, in whatever thread serves the request; workers
compile the same grammar over their vocabulary (`grammar.matcher`). Compiling releases the interpreter.

The work a schema can cause is bounded three times: by its shape (`grammar.schema_limits`), by what may be built from
it, and by what one token of an answer may cost the engine's thread. What breaks a bound is refused or ended; nobody
waits for it.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from inference.errors import InvalidRequest
from inference.grammar import schema_limits
from inference.grammar.schema_limits import PARAM
from inference.messages.generation import MAX_SCHEMA_CHARS

MAX_REASON_CHARS = 300

# One space, or a line end with an indentation: a model may write compact or pretty JSON, but never only blanks.
_FORM = {
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n {0,16}",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,  # an answer could then match two of them
    "lenient": False,  # a keyword that is not understood is refused, not ignored
    "json_allow_general_unicode_escapes": False,  # the character itself does it; half a pair never
}
# In parentheses, what these cost at most on one core of a small server.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # (20 ms, when it is compiled)
    max_grammar_size=100_000,
    max_items_in_row=2_000,  # about 500 optional properties side by side
    step_lexer_fuel=50_000,  # (4 ms per token)
    step_max_items=20_000,  # (1 ms per token)
    max_lexer_states=20_000,  # (40 MB)
    precompute_large_lexemes=True,
    verbose_errors=False,
)
BYTES = LLTokenizer("byte")  # every byte a token: enough to see whether a schema compiles and can begin
_TOO_LARGE = ("too large", "too many", "Too many", "too complex", "row has", "fuel", "Unable to determine if regex")
_IMPOSSIBLE = ("NoExtension",)
_UNSUPPORTED = re.compile(r"Unimplemented keys: (\[.*\])")
_PREAMBLE = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")
_BAD_PATTERN = re.compile(r"^regex parse error:.*^error: ([^\n]*)", re.DOTALL | re.MULTILINE)
_names_decoder = msgspec.json.Decoder(list[str])  # made at import, by one thread: see inference.messages.serialization
_OUTSIDE = re.compile(r"Resource '(.*?)' is not present")
_FORMAT = re.compile(r"Unknown format: ")
_RANGE = re.compile(r"Failed to generate regex for \w+ range")
_PATTERN_SIGNS = ("regex parse error", "lookarounds not supported", "in regex /")


class Unheld(InvalidRequest):
    """An answer can be held to all of the schema but some keywords: `names` are theirs, or what they refer to."""

    def __init__(
        self,
        message: str,
        kind: Literal["keywords", "formats", "patterns", "key_patterns", "cases", "range", "reference"],
        *names: str,
    ) -> None:
        super().__init__(message, param=PARAM)
        self.kind = kind
        self.names = names


def check(schema: str) -> None:
    """Return if answers can be made to follow `schema` (JSON text). Takes 1 ms, 0.2 s for the largest.

    Raises:
        InvalidRequest: they cannot; the sentence says why, `param` is `response_format`.
    """
    compiled(schema, BYTES)


def compiled(schema: str, vocabulary: LLTokenizer, *, may_break: bool = False) -> LLMatcher:
    """A matcher over `vocabulary` that stands at the beginning of an answer. Raises as `check`.

    `may_break`: one or two line ends may come first, as models put them behind a thought.
    """
    rules = f"start: %json {body(schema)}\n"
    if may_break:
        rules = f"start: _BREAK? answer\nanswer: %json {body(schema)}\n_BREAK: /\\n{{1,2}}/\n"
    return matcher(rules, vocabulary)


def matcher(rules: str, vocabulary: LLTokenizer) -> LLMatcher:
    """A matcher of a grammar in llguidance's Lark, whose schemas come from `body`. Raises as `check`."""
    # Not forcing what has no alternative: the library would spell out all that is certain to follow, at every token.
    grammar: str = LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\n{rules}')
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # some only show here that nothing can follow them
    if matcher.is_error():
        raise _fault(matcher.get_error())
    return matcher


def _fault(report: str) -> InvalidRequest:
    said, report = reason(report), _PREAMBLE.sub("", report)
    if match := _UNSUPPORTED.search(report):
        return Unheld(said, "keywords", *_names_decoder.decode(match[1]))
    if match := _OUTSIDE.search(report):
        return Unheld(said, "reference", match[1])
    if _FORMAT.match(report):
        return Unheld(said, "formats")
    if _RANGE.match(report):
        return Unheld(said, "range")
    if report.startswith("oneOf constraints"):
        return Unheld(said, "cases")
    if report.startswith("patternProperty regexes"):
        return Unheld(said, "key_patterns")
    if any(sign in report for sign in _PATTERN_SIGNS) and not any(sign in report for sign in _TOO_LARGE):
        return Unheld(said, "patterns")
    return InvalidRequest(said, param=PARAM)


def reason(report: str) -> str:
    """One sentence for what the grammar library says of a schema."""
    report = _PREAMBLE.sub("", report)
    if match := _UNSUPPORTED.search(report):
        names = ", ".join(_names_decoder.decode(match[1]))
        return f"The schema uses what is not supported here: {names}."[:MAX_REASON_CHARS]
    if any(sign in report for sign in _IMPOSSIBLE):
        return "The schema cannot be followed: nothing satisfies it, or a part of it."
    if any(sign in report for sign in _TOO_LARGE):
        return "The schema is too large or too complex."
    if match := _OUTSIDE.search(report):
        return f"The schema refers to {match[1][:MAX_REASON_CHARS]}, which lies outside of it."
    if report.startswith("oneOf constraints"):
        return "The schema cannot be followed: oneOf needs cases of which never two can match; use anyOf."
    if match := _BAD_PATTERN.search(report):
        return f"A pattern of the schema cannot be followed: {match[1]}."
    line = next((line.strip() for line in report.splitlines() if line.strip()), "it is not sound")
    return f"The schema cannot be followed: {line[:MAX_REASON_CHARS].rstrip('.')}."


def body(schema: str, *, must_be_object: bool = False) -> str:
    """The schema as it stands in a grammar. Raises InvalidRequest: it is none, or beyond the limits."""
    if len(schema) > MAX_SCHEMA_CHARS:
        raise InvalidRequest(f"A schema may have at most {MAX_SCHEMA_CHARS:,} characters.", param=PARAM)
    try:
        value = msgspec.json.decode(schema)
    except RecursionError:
        raise schema_limits.too_deep() from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"The schema is not JSON: {error}.", param=PARAM) from None
    except UnicodeEncodeError:
        raise InvalidRequest("The schema holds half a character (a lone surrogate).", param=PARAM) from None
    if value is True:
        value = {}
    if not isinstance(value, dict):
        said = "false allows nothing" if value is False else "a schema is an object, true or false"
        raise InvalidRequest(f"The schema cannot be followed: {said}.", param=PARAM)
    if "x-guidance" in value:  # would turn the options above around
        raise InvalidRequest("The schema uses what is not supported here: x-guidance.", param=PARAM)
    schema_limits.check(value)
    if must_be_object:
        value = {"type": "object", **value}
    return msgspec.json.encode({**value, "x-guidance": _FORM}).decode()
