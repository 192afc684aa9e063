"""How many bytes the body of a request may have. A stranger's is as small as a form to sign in."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.urls import Resolver404, resolve

from chatsite.api.consumers import MAX_BODY_BYTES as API_BYTES

STRANGER_BYTES = 64 * 1024
BARE_BYTES = 4 * 1024  # where nothing reads a body: other methods than POST, unknown addresses
MARGIN_BYTES = 1024 * 1024  # what a form puts around a file, and its other fields

FILES_ROUTE = "chat:upload"
IMPORT_ROUTE = "transfer:import"


@dataclass(frozen=True)
class Limits:
    """`stranger` for everybody, `person` for who is signed in and may enter."""

    stranger: int
    person: int

    @property
    def asks_who(self) -> bool:
        return self.person > self.stranger


def is_api(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")


def limits_of(method: str, path: str) -> Limits:
    if method != "POST":
        return Limits(BARE_BYTES, BARE_BYTES)
    if is_api(path):  # its consumers ask for the key before they read on
        return Limits(API_BYTES, API_BYTES)
    try:
        route = resolve(path).view_name
    except Resolver404:
        return Limits(BARE_BYTES, BARE_BYTES)
    return Limits(STRANGER_BYTES, max(STRANGER_BYTES, _person_bytes(route)))


def most_of_all() -> int:
    """The largest body that anybody may send."""
    return max(API_BYTES, *map(_person_bytes, (FILES_ROUTE, IMPORT_ROUTE, "")))


def _person_bytes(route: str) -> int:
    site = settings.SMOLFLEET
    if route == FILES_ROUTE:  # one form may bring all files of a message; each is measured by itself
        return int(site.max_file_bytes * max(1, site.max_files_per_message) + MARGIN_BYTES)
    if route == IMPORT_ROUTE:
        return int(site.max_import_bytes + MARGIN_BYTES)
    return int(settings.DATA_UPLOAD_MAX_MEMORY_SIZE)
