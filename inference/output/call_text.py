"""One tool call as a model writes it in JSON, read character by character.

Owns what is known of the call so far: its name, the text of its arguments. Knows nothing of tags, of other calls or of
content; `output.tool_calls` gives it the characters, in the thread of one generation.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from inference.messages.generation import CALL_TRUNCATED, ErrorFacts
from inference.output.json_scanner import JsonScanner, NotJson

MAX_CALL_CHARS = 1_000_000

_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})


class CallFault(Exception):
    """This is no call. `facts` say why, `code` of them is tool_call_invalid, tool_call_truncated or tool_unknown."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.facts = ErrorFacts(code=code, message=message)


def invalid(what: str) -> CallFault:
    return CallFault("tool_call_invalid", f"The model's tool call cannot be read: {what}.")


def truncated() -> CallFault:
    return CallFault(CALL_TRUNCATED, "The answer ended in the middle of a tool call.")


def unknown(name: str) -> CallFault:
    return CallFault("tool_unknown", f"The model called {name[:80]!r}, which is none of the tools offered.")


class CallText:
    """`feed` it the call's JSON object. `name` is "" until it is known; it is then one of `names`.

    The arguments may come before the name, may be missing or null (no arguments), or be an object's JSON in a string.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.name = ""
        self._names = names
        self._scanner = JsonScanner()
        self._num_chars = 0
        self._name_text: list[str] = []
        self._arguments_text: list[str] = []
        self._ready: list[str] = []  # of the arguments, waiting for the name
        self._seen: set[str] = set()

    @property
    def is_done(self) -> bool:
        return self._scanner.is_done

    @property
    def is_whole(self) -> bool:
        """Whether name and arguments are known to their ends; the object itself may yet be open."""
        return bool(self.name) and "arguments" in self._seen

    def feed(self, char: str) -> str:
        """The text of the arguments that can be shown now.

        Raises:
            CallFault: this is no call of a known tool. Nothing may be fed after it.
        """
        self._num_chars += 1
        if self._num_chars > MAX_CALL_CHARS:
            raise invalid("it is too long")
        try:
            told = self._scanner.feed(char)
        except NotJson:
            raise invalid("it is not sound JSON") from None
        key = self._scanner.key
        if told and key == "name":
            self._name_text.append(told)
        elif told and key in _ARGUMENT_KEYS:
            self._take_arguments(told)
        if self._scanner.ended is not None:
            self._end_member(self._scanner.ended)
        if self.is_done:
            self._end()
        if not self.name:
            return ""
        ready, self._ready = self._ready, []
        return "".join(ready)

    def _take_arguments(self, told: str) -> None:
        if "arguments" in self._seen:
            raise invalid("its arguments come twice")
        if not self._arguments_text and told not in ("{", '"', "n"):
            raise invalid("its arguments are no object")
        self._arguments_text.append(told)
        if self._arguments_text[0] == "{":
            self._ready.append(told)

    def _end_member(self, key: str) -> None:
        if key == "name":
            if "name" in self._seen:
                raise invalid("its name comes twice")
            self._seen.add("name")
            name = json.loads("".join(self._name_text))
            if not isinstance(name, str) or not name:
                raise invalid("its name is no text")
            if name not in self._names:
                raise unknown(name)
            self.name = name
        elif key in _ARGUMENT_KEYS:
            self._seen.add("arguments")
            text = "".join(self._arguments_text)
            if text == "null":
                self._ready = ["{}"]
            elif text[0] == '"':
                self._ready = [_object_in(json.loads(text))]

    def _end(self) -> None:
        if not self.name:
            raise invalid("it has no name")
        if "arguments" not in self._seen:
            self._ready = ["{}"]


def _object_in(text: str) -> str:
    """The one JSON object that `text` is. Raises CallFault."""
    text = text.strip()
    scanner = JsonScanner()
    shown = []
    try:
        # As the value of a member, so that the scanner tells the text that it takes.
        for char in '{"":' + text:
            shown.append(scanner.feed(char))
        is_one = text.startswith("{") and scanner.ended is not None and scanner.feed("}") == "" and scanner.is_done
    except NotJson:
        is_one = False
    if not is_one:
        raise invalid("its arguments are no object")
    return "".join(shown)
