"""Search in one's own conversations, as the page's search finds them: never in anybody else's."""

from __future__ import annotations

import html
import re
from typing import Annotated

import msgspec
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import User
from chatsite.accounts.time_zones import zone_of
from chatsite.chat.queries import search
from chatsite.chat.tools.tool import Tool, ToolFailed

MAX_HITS = 8
_MARK = re.compile(r"</?mark>")


class Arguments(msgspec.Struct):
    query: Annotated[str, msgspec.Meta(description="Words to look for", max_length=search.MAX_QUERY_CHARS)]


def run(user: User, arguments: Arguments) -> str:
    """The newest hits, one to a paragraph: date, title, and the text around the words. Raises ToolFailed: no words."""
    found = search.find(user, arguments.query)
    if not found.has_words:
        raise ToolFailed("The query has no word to look for.")
    lines = []
    zone = zone_of(user)
    for hit in found.hits[:MAX_HITS]:
        day = (hit.message or hit.conversation).created_at.astimezone(zone).date().isoformat()
        lines.append(f"{day} · {_plain(hit.title)}: {_plain(hit.snippet)}".rstrip(": "))
    return "\n\n".join(lines) or "Nothing was found."


def _plain(marked: str) -> str:
    return html.unescape(_MARK.sub("", marked))


TOOL = Tool(
    name="search_chats",
    title=_("Search in your chats"),
    description="Searches the user's earlier conversations for words and returns the passages found, newest first.",
    arguments=Arguments,
    run=run,
)
