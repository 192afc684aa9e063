"""What is said to a request that does not pass: as a page, a fragment for htmx, OpenAI's error object, or plain text.

The body has not been read, so that no form can be shown again with what was typed; it is still in the browser.
"""

from __future__ import annotations

from typing import Any

from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from chatsite.api.errors import ApiError
from chatsite.gate.limits import is_api
from chatsite.gate.visitor import Visitor

RETRY_SECONDS = 5
HEADERS = [
    (b"cache-control", b"no-store"),
    (b"connection", b"close"),
    (b"content-security-policy", b"default-src 'none'; style-src 'self'; frame-ancestors 'none'"),
    (b"referrer-policy", b"same-origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]


class Refusal(Exception):
    """`title` and `sentence` are English, and are translated when they are said."""

    def __init__(
        self,
        status: int,
        code: str,
        title: str,
        sentence: str,
        *,
        max_bytes: int = 0,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code
        self.title = title
        self.retry_after_seconds = retry_after_seconds
        self.facts = {"retry_after_seconds": retry_after_seconds}
        self._sentence = sentence
        self._max_bytes = max_bytes

    @property
    def message(self) -> str:
        return _(self._sentence) % {"most": filesizeformat(self._max_bytes)}


def too_large(max_bytes: int, *, for_stranger: bool = False) -> Refusal:
    sentence = (
        gettext_noop("A request may have at most %(most)s here before you have signed in.")
        if for_stranger
        else gettext_noop("A request may have at most %(most)s here.")
    )
    return Refusal(413, "request_too_large", gettext_noop("Too large"), sentence, max_bytes=max_bytes)


def no_length() -> Refusal:
    sentence = gettext_noop("The request does not say clearly how long it is.")
    return Refusal(400, "bad_length", gettext_noop("Not understood"), sentence)


def too_slow() -> Refusal:
    sentence = gettext_noop("The rest of the request did not come in time. Nothing of it was kept; send it again.")
    return Refusal(408, "request_too_slow", gettext_noop("Too slow"), sentence)


def too_many() -> Refusal:
    sentence = gettext_noop("Too much is being sent from your address at once. Wait until some of it has come.")
    return _again(429, "too_many_bodies", gettext_noop("Too many requests"), sentence)


def no_room() -> Refusal:
    sentence = gettext_noop("The site is taking in as much as it can hold. Try again in a moment.")
    return _again(503, "no_room", gettext_noop("Try again in a moment"), sentence)


def cannot_tell() -> Refusal:
    sentence = gettext_noop("The database cannot be reached, so the site cannot tell whether you are signed in.")
    return _again(503, "database_unavailable", gettext_noop("Try again in a moment"), sentence)


def _again(status: int, code: str, title: str, sentence: str) -> Refusal:
    return Refusal(status, code, title, sentence, retry_after_seconds=RETRY_SECONDS)


def messages(refusal: Refusal, path: str, method: str, visitor: Visitor) -> list[dict[str, Any]]:
    """The whole answer, as ASGI messages."""
    headers, text = _said(refusal, path, visitor)
    body = text.encode()
    if refusal.retry_after_seconds is not None:
        headers.append((b"retry-after", str(refusal.retry_after_seconds).encode()))
    headers.append((b"content-length", str(len(body)).encode()))
    return [
        {"type": "http.response.start", "status": refusal.status, "headers": [*HEADERS, *headers]},
        {"type": "http.response.body", "body": b"" if method == "HEAD" else body},
    ]


def _said(refusal: Refusal, path: str, visitor: Visitor) -> tuple[list[tuple[bytes, bytes]], str]:
    if is_api(path):
        return [(b"content-type", b"application/json")], _as_api(refusal)
    html = [(b"content-type", b"text/html; charset=utf-8"), (b"vary", b"HX-Request, Accept, Accept-Language, Cookie")]
    with translation.override(visitor.language):
        if visitor.header(b"hx-request") == "true":
            swap = [(b"hx-retarget", b"#refusal"), (b"hx-reswap", b"innerHTML")]
            return [*html, *swap], render_to_string("chat/_error.html", {"refusal": refusal})
        if "text/html" in visitor.header(b"accept"):
            return html, render_to_string("gate/refused.html", {"refusal": refusal, "title": _(refusal.title)})
        return [(b"content-type", b"text/plain; charset=utf-8")], refusal.message + "\n"


def _as_api(refusal: Refusal) -> str:
    with translation.override("en"):
        error = ApiError(refusal.message, code=refusal.code)
    error.type = "server_error" if refusal.status >= 500 else "invalid_request_error"
    return error.body.decode()
