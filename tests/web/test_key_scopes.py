"""`/v1` and API keys over real HTTP: a key does what its scopes say, for as long as it counts, and nothing else."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import redis as redis_py
from django.conf import settings
from django.db import connection
from django.utils import timezone

from chatsite.accounts.models import ApiKey, User
from chatsite.api import keys
from chatsite.chat.models import Generation
from chatsite.rules.models import SiteRules
from tests.web.api_server import serving
from tests.web.api_worker import MODEL, ScriptedWorker


@pytest.fixture(scope="module")
def base_url(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock(), serving(connection.settings_dict["NAME"]) as url:
        yield url


@pytest.fixture
def worker(redis: redis_py.Redis, valkey_url: str, transactional_db: None) -> Iterator[ScriptedWorker]:
    with ScriptedWorker(valkey_url, dataclasses.replace(settings.INFERENCE, lease_seconds=60.0)) as worker:
        yield worker


@pytest.mark.parametrize(
    ("scopes", "path", "status"),
    [
        (["models"], "models", 200),
        (["models"], f"models/{MODEL}", 200),
        (["models"], "chat/completions", 403),
        (["chat"], "models", 403),
        (["chat"], f"models/{MODEL}", 403),
        (["chat"], "models/unknown", 403),
        (["chat"], "chat/completions", 200),
        (["chat", "models"], "chat/completions", 200),
        (["chat", "models"], "models", 200),
    ],
)
def test_a_key_does_what_its_scopes_say_and_nothing_else(
    base_url: str, worker: ScriptedWorker, alice: User, scopes: list[str], path: str, status: int
) -> None:
    key, secret = keys.create(alice, "script", scopes=scopes)
    headers = {"Authorization": f"Bearer {secret}"}
    if path.startswith("chat"):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        answer = httpx.post(f"{base_url}/v1/{path}", json=body, headers=headers, timeout=20)
    else:
        answer = httpx.get(f"{base_url}/v1/{path}", headers=headers, timeout=20)
    assert answer.status_code == status
    if status == 403:
        needed = "chat" if path.startswith("chat") else "models"
        assert answer.json()["error"] == {
            "message": f"This API key may not do that: it needs the scope '{needed}',"
            f" and the key's scopes are '{scopes[0]}'.",
            "type": "invalid_request_error",
            "param": None,
            "code": "insufficient_scope",
        }
        assert answer.headers["www-authenticate"] == f'Bearer error="insufficient_scope", scope="{needed}"'
        assert not Generation.objects.exists()
    elif path.startswith("chat"):
        assert Generation.objects.get().api_key == key


def test_clients_of_openai_get_their_own_exceptions(base_url: str, worker: ScriptedWorker, alice: User) -> None:
    _, secret = keys.create(alice, "script", scopes=["models"])
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key=secret, max_retries=0, timeout=20) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.PermissionDeniedError) as denied:
            client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}])
    assert denied.value.code == "insufficient_scope"
    with (
        openai.OpenAI(base_url=f"{base_url}/v1", api_key="sf_nonsense", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as unknown,
    ):
        stranger.models.list()
    assert unknown.value.code == "invalid_api_key"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Basic abc", "Bearer nothing", "Bearer sf_\x7f"])
def test_every_route_asks_for_a_key(base_url: str, transactional_db: None, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for method, path in (("GET", "models"), ("GET", "models/x"), ("POST", "chat/completions")):
        response = httpx.request(method, f"{base_url}/v1/{path}", headers=headers)
        assert response.status_code == 401, (method, path)
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("revoked", "has been revoked"),
        ("expired", "has expired"),
        ("older than the rule", "older than the 7 days"),
        ("inactive", "not known"),
    ],
)
def test_a_key_that_no_longer_counts_is_refused(
    base_url: str, alice: User, redis: redis_py.Redis, fault: str, said: str
) -> None:
    key, secret = keys.create(alice, "script", scopes=["models"])
    headers = {"Authorization": f"Bearer {secret}"}
    assert httpx.get(f"{base_url}/v1/models", headers=headers).status_code == 200
    if fault == "revoked":
        keys.revoke(alice, key.pk)
    elif fault == "expired":
        ApiKey.objects.update(expires_at=timezone.now())
    elif fault == "older than the rule":
        SiteRules.objects.create(id=1, key_days=7)
        ApiKey.objects.update(created_at=timezone.now() - datetime.timedelta(days=7))
    else:
        User.objects.update(is_active=False)
    refused = httpx.get(f"{base_url}/v1/models", headers=headers)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert said in refused.json()["error"]["message"]
