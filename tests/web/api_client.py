"""OpenAI's own client against `/v1` of a real Daphne, with a worker that follows a script: fixtures, bodies, limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import redis as redis_py
from django.conf import settings
from django.db import connection

from chatsite.accounts.models import ApiKey, User
from tests.web.api_server import serving
from tests.web.api_worker import MODEL, ScriptedWorker

MAX_ACTIVE = 2
MAX_COMPLETION = 50


@pytest.fixture(scope="module")
def base_url(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with (
        django_db_blocker.unblock(),
        serving(
            connection.settings_dict["NAME"],
            MAX_ACTIVE_PER_KEY=str(MAX_ACTIVE),
            MAX_COMPLETION_TOKENS=str(MAX_COMPLETION),
            LOG_LEVEL="DEBUG",
        ) as url,
    ):
        yield url


@pytest.fixture
def user(transactional_db: None) -> User:
    return User.objects.create_user("ada")


@pytest.fixture
def key(user: User) -> str:
    return ApiKey.create(user, "test")[1]


@pytest.fixture
def worker(redis: redis_py.Redis, valkey_url: str, transactional_db: None) -> Iterator[ScriptedWorker]:
    config = dataclasses.replace(settings.INFERENCE, lease_seconds=60.0)
    with ScriptedWorker(valkey_url, config) as worker:
        yield worker


@pytest.fixture
def client(base_url: str, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key=key, max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture
def http(base_url: str, key: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=base_url, headers={"Authorization": f"Bearer {key}"}, timeout=20) as client:
        yield client


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": ask(text), **fields}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def events(text: str) -> list[str]:
    """The data of each event; comments are none."""
    return [part[len("data: ") :] for part in text.split("\n\n") if part.startswith("data: ")]
