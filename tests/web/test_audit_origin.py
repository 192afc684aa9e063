"""Who asks, and from where: what the audit log knows of the request in which something is done."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client, RequestFactory

from chatsite.audit.middleware import OriginMiddleware
from chatsite.audit.models import Action, AuditEntry
from chatsite.audit.origin import origin
from tests.web.auditing import ADDRESS, PASSWORD, World

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis")]  # limits are counted in Valkey


@pytest.mark.parametrize(
    ("proxies", "forwarded", "seen"),
    [
        (0, "203.0.113.9", ADDRESS),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "198.51.100.1, 203.0.113.9", "203.0.113.9"),
        (2, "198.51.100.1, 203.0.113.9", "198.51.100.1"),
        (1, "", ADDRESS),
    ],
)
def test_the_address_is_the_one_that_trusted_proxies_name(
    world: World, settings: Any, proxies: int, forwarded: str, seen: str
) -> None:
    settings.ALLAUTH_TRUSTED_PROXY_COUNT = proxies
    headers = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    client = Client(REMOTE_ADDR=ADDRESS, **headers)
    client.post("/accounts/login/", {"login": "alice", "password": PASSWORD})
    assert AuditEntry.objects.get(action=Action.SIGNED_IN).ip == seen


def test_nothing_is_read_of_a_request_that_records_nothing(world: World, django_assert_num_queries: Any) -> None:
    client = Client()
    with django_assert_num_queries(0):
        for path in ("/health/live", "/favicon.ico", "/manifest.webmanifest", "/static/css/app.css"):
            assert "Cookie" not in client.get(path).get("Vary", ""), path


async def test_origin_follows_a_request_through_threads_and_ends_with_it() -> None:
    from asgiref.sync import sync_to_async

    async def view(request: HttpRequest) -> Any:
        return await sync_to_async(lambda: origin().ip)()

    request = RequestFactory(REMOTE_ADDR=ADDRESS).get("/")
    assert await OriginMiddleware(view)(request) == ADDRESS  # type: ignore[arg-type, misc]
    assert await sync_to_async(lambda: OriginMiddleware(lambda _request: origin().ip)(request))() == ADDRESS  # type: ignore[arg-type, return-value]
    assert origin().ip is None
