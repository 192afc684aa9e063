"""A user name for somebody who comes from outside: what they are called there, made fit for here, and free.

Knows nothing of providers; `adapter` calls it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

from allauth.account.adapter import get_adapter
from django.core.exceptions import ValidationError

from chatsite.accounts.models import User

MAX_CHARS = 60  # of a name made here; a number may follow
NUM_NUMBERED = 1_000  # ann2, ann3, …
NO_NAME = "user"


def wanted(*called: object) -> str:
    """The first of `called` of which anything remains: letters, digits and . + - _, and of an address what is before @.

    Whatever is not text counts as nothing: it comes from elsewhere.
    """
    for text in called:
        if isinstance(text, str):
            words = unicodedata.normalize("NFKC", text).partition("@")[0].split()
            name = re.sub(r"[^\w.+-]", "", "_".join(words))[:MAX_CHARS].strip(".+-_")
            if name:
                return name
    return NO_NAME


def printable(text: str) -> str:
    """`text` without what no page can show and Postgres does not keep: controls, half characters."""
    return "".join(character for character in text if character.isprintable())


def is_free(name: str) -> bool:
    """Whether a new person may be called `name`: nobody is, in whatever case, and the site allows it."""
    try:
        get_adapter().clean_username(name)
    except ValidationError:
        return False
    return True


def free(name: str) -> str:
    """`name` itself, or with the first number that makes it free. Another may take it meanwhile: saving tells."""
    taken = {known.lower() for known in _taken_like(name)}
    return next(candidate for candidate in _numbered(name) if candidate.lower() not in taken and is_free(candidate))


def _taken_like(name: str) -> Iterable[str]:
    numbered = rf"^{re.escape(name)}[0-9]*$"
    return User.objects.filter(username__iregex=numbered).values_list("username", flat=True)


def _numbered(name: str) -> Iterator[str]:
    yield name
    for number in range(2, NUM_NUMBERED):
        yield f"{name}{number}"
    while True:
        yield f"{NO_NAME}-{User().pk.hex[-12:]}"  # the random end of a new identifier
