"""Tokens spent and limited, for tests of quotas: a person, their group, another time, a message that costs."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis as redis_py
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.api import schemas
from chatsite.chat.actions import send as actions_send
from chatsite.chat.generation import request
from chatsite.chat.models import Generation
from chatsite.rules.models import UserRules
from chatsite.usage import ledger
from inference.messages.generation import SamplingParams
from tests.web.chat_worker import MODEL

BERLIN = ZoneInfo("Europe/Berlin")


def limit(user: User, **tokens: int | None) -> None:
    UserRules.objects.update_or_create(user=user, defaults=tokens)


def spend(user: User, tokens: int, *, at: datetime.datetime | None = None) -> None:
    with transaction.atomic():
        ledger.add(
            ledger.Entry(
                user_id=user.pk, ended_at=at or timezone.now(), model=MODEL, source="chat", completion_tokens=tokens
            )
        )


def send(user: User, *, max_tokens: int | None = None) -> Generation:
    """In a conversation of its own."""
    sampling = SamplingParams(max_tokens=max_tokens)
    return actions_send.send_message(user, actions_send.start_conversation(user), "hi", sampling=sampling).generation


def cap_of(generation: Generation) -> int | None:
    return request.frozen_request_of(generation).sampling.max_tokens


def body(**fields: Any) -> schemas.ChatCompletionRequest:
    text = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    return schemas.parse(json.dumps(text).encode())


@pytest.fixture
def person(alice: User, site: Callable[..., None], redis: redis_py.Redis) -> User:
    """Alice, on a site whose answers have at most 600 tokens."""
    site(max_completion_tokens=600)
    return alice


@pytest.fixture
def at(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., datetime.datetime]:
    """Make it another time, in Berlin."""
    settings.TIME_ZONE = "Europe/Berlin"

    def set_clock(*parts: int) -> datetime.datetime:
        now = datetime.datetime(*parts, tzinfo=BERLIN)  # type: ignore[arg-type,misc]
        monkeypatch.setattr(timezone, "now", lambda: now.astimezone(datetime.UTC))
        return now

    return set_clock


@pytest.fixture
def group(person: User, bob: User) -> Group:
    group = Group.objects.create(name="Physics")
    for member in (person, bob):
        member.groups.add(group)
    return group
