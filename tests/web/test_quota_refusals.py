"""What a full quota says, to whom and where: page, terminal, queue, metrics, programs."""

# ruff: noqa: F811  (fixtures are imported, then asked for by their names)

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone, translation

from chatsite.accounts.models import ApiKey, User
from chatsite.api import completion
from chatsite.api import errors as api_errors
from chatsite.chat import errors, tasks
from chatsite.chat.actions import queue
from chatsite.chat.actions import send as actions_send
from chatsite.chat.models import Generation, Message, QueuedMessage
from chatsite.ops import metrics
from chatsite.rules.models import GroupRules
from chatsite.usage import quotas
from tests.web.api_server import serving
from tests.web.api_worker import kit
from tests.web.chat_worker import MODEL, StepWorker
from tests.web.spending import BERLIN, at, body, group, limit, person, send, spend  # noqa: F401  (fixtures)
from tests.web.test_actions import answer
from tests.web.test_pages import HX, signed_in

# -- what is said


def test_the_refusal_says_all_there_is_to_know(person: User, at: Callable[..., datetime.datetime]) -> None:
    now = at(2026, 11, 28, 18, 48)
    limit(person, tokens_per_day=100_000)
    spend(person, 100_000)
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert refused.value.message == (
        "You have used your 100,000 tokens of today. New ones come at 00:00 (in 5 h 12 min)."
    )
    assert (refused.value.code, refused.value.http_status) == ("quota_exceeded", 429)
    assert refused.value.facts == {
        "scope": "day",
        "group": None,
        "limit": 100_000,
        "used": 100_000,
        "reserved": 0,
        "left": 0,
        "needed": 64,
        "reset_at": "2026-11-29T00:00:00+01:00",
        "retry_after_seconds": int((datetime.datetime(2026, 11, 29, tzinfo=BERLIN) - now).total_seconds()),
    }
    limit(person, tokens_per_day=100_020)
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert refused.value.message.startswith(
        "Of your 100,020 tokens of today 20 are left. This needs at least 64. New ones come at 00:00"
    )


def test_tokens_held_by_answers_under_way_are_worth_a_try_soon(person: User) -> None:
    limit(person, tokens_per_day=620)
    send(person, max_tokens=600)
    with pytest.raises(errors.QuotaExceeded) as refused:
        send(person)
    assert refused.value.retry_after_seconds == quotas.HELD_SECONDS
    assert "held for answers under way" in refused.value.message
    assert "New ones" not in refused.value.message


@pytest.mark.parametrize("headers", [{}, HX], ids=["page", "htmx"])
def test_the_page_says_it_and_keeps_what_was_typed(
    person: User, headers: dict[str, str], at: Callable[..., datetime.datetime]
) -> None:
    at(2026, 11, 28, 18, 48)
    limit(person, tokens_per_day=100)
    spend(person, 100)
    conversation = actions_send.start_conversation(person)
    for path in (f"/chat/{conversation.pk}/send/", "/chat/", "/chat/temporary/"):
        response = signed_in(person).post(path, {"text": "my long thought"}, headers=headers)
        page = response.content.decode()
        assert (response.status_code, response["Retry-After"]) == (429, "18720"), path
        assert 'data-code="quota_exceeded"' in page
        assert "New ones come at 00:00 (in 5 h 12 min)." in page
        assert "Try again in 18720 s" not in page
        if headers:
            assert response["HX-Retarget"] == "#refusal"  # the box is left alone
        else:
            assert "my long thought" in page
    assert not Message.objects.exists()


def test_less_than_a_tenth_left_is_said_at_the_message_box(person: User, worker: StepWorker) -> None:
    limit(person, tokens_per_day=1_000)
    conversation = actions_send.start_conversation(person)
    client = signed_in(person)
    spend(person, 900)
    assert "only" not in client.get(f"/chat/{conversation.pk}/").content.decode()
    spend(person, 1)
    for path in (f"/chat/{conversation.pk}/", "/", "/chat/temporary/"):
        assert (
            "Of your 1,000 tokens of today only 99 are left; new ones come at 00:00."
            in client.get(path).content.decode()
        )
    sent = client.post(f"/chat/{conversation.pk}/send/", {"text": "hi"}, headers=HX).content.decode()
    assert 'id="low" hx-swap-oob="true"' in sent
    limit(person, tokens_per_day=None)
    assert "only" not in client.get(f"/chat/{conversation.pk}/").content.decode()


def test_the_terminal_says_it(person: User) -> None:
    limit(person, tokens_per_day=100)
    spend(person, 100)
    with pytest.raises(CommandError, match="You have used your 100 tokens of today"):
        call_command("ask", "hi", user=person.username, stdout=StringIO())


def test_every_sentence_is_whole_in_every_language(person: User, group: Group, settings: Any) -> None:
    GroupRules.objects.create(group=group, pool_per_day=100, pool_per_month=100)
    for code, _name in settings.LANGUAGES:
        with translation.override(code):
            for used in (0, 50, 100):
                for balance in quotas.standing(person).pools:
                    full = quotas.QuotaFull(
                        quotas.Balance(balance.window, 100, used, 0, balance.pool), 200, timezone.now()
                    )
                    refusal = errors.QuotaExceeded(full)
                    assert "%(" not in refusal.message
                    assert "Physics" in refusal.message


def test_a_queued_message_waits_for_the_reset_and_is_sent_then(
    person: User, worker: StepWorker, at: Callable[..., datetime.datetime]
) -> None:
    at(2026, 11, 28, 18, 0)
    limit(person, tokens_per_day=14)
    conversation = actions_send.start_conversation(person, max_tokens=14)
    actions_send.send_message(person, conversation, "one")
    attempt = worker.claim().start()
    queue.say(person, conversation, "two", idempotency_key=uuid.uuid4())
    attempt.finish()
    tasks.record(str(attempt.id))
    entry = QueuedMessage.objects.get()
    assert entry.refusal == "You have used your 14 tokens of today. New ones come at 00:00."
    assert entry.try_again_at == datetime.datetime(2026, 11, 29, tzinfo=BERLIN)
    at(2026, 11, 28, 23, 59)
    tasks.sweep()
    assert QueuedMessage.objects.exists()
    at(2026, 11, 29, 0, 0, 1)
    tasks.sweep()
    assert not QueuedMessage.objects.exists()
    assert Message.objects.filter(content="two").exists()


def test_metrics_have_refusals_and_charged_tokens(person: User) -> None:
    refused = partial(quotas.counted.get_sample_value, "smolfleet_quota_refusals_total")
    before = refused({"scope": "month", "whose": "own"}) or 0.0
    limit(person, tokens_per_month=100)
    spend(person, 100)
    with pytest.raises(errors.QuotaExceeded):
        send(person)
    assert refused({"scope": "month", "whose": "own"}) == before + 1
    text = metrics.text().decode()
    assert 'smolfleet_charged_tokens_today{model="scripted",source="chat"} 100.0' in text
    assert "smolfleet_quota_refusals_total" in text


# -- programs


@pytest.fixture(scope="module")
def base_url(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock(), serving(connection.settings_dict["NAME"]) as url:
        yield url


def test_the_api_answers_as_openai_does_and_tells_clients_not_to_repeat(
    base_url: str, person: User, worker: StepWorker
) -> None:
    worker.announce(kit=kit().to_bytes(), context_tokens=2_000)
    _key, secret = ApiKey.create(person, "program")
    limit(person, tokens_per_day=1_000)
    spend(person, 1_000)
    request = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    for is_stream in (False, True):
        response = httpx.post(
            f"{base_url}/v1/chat/completions",
            json={**request, "stream": is_stream},
            headers={"Authorization": f"Bearer {secret}"},
            timeout=20,
        )
        assert response.status_code == 429
        error = response.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("insufficient_quota", "insufficient_quota", None)
        assert error["message"].startswith("You have used your 1,000 tokens of today.")
        assert 0 < int(response.headers["retry-after"]) <= 25 * 3600
        assert response.headers["x-should-retry"] == "false"
    assert not Generation.objects.exists()


def test_a_program_may_try_again_where_only_answers_under_way_are_in_the_way(person: User, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes(), context_tokens=2_000)
    limit(person, tokens_per_day=620)
    send(person, max_tokens=580)
    with pytest.raises(errors.QuotaExceeded) as refused:
        completion.admit(person, body())
    answer = api_errors.of(refused.value)
    assert (answer.status, answer.headers) == (429, [(b"retry-after", b"10")])


def test_the_key_that_asked_is_in_the_ledger(person: User, worker: StepWorker) -> None:
    worker.announce(kit=kit().to_bytes(), context_tokens=2_000)
    key, _secret = ApiKey.create(person, "program")
    completion.admit(person, body(), key=key)
    answer(worker, "yes")
    (row,) = person.usage_days.all()
    assert (row.source, row.api_key, row.charged_tokens) == ("api", key, 14)


def test_one_persons_quota_is_nobody_elses(person: User, bob: User) -> None:
    limit(bob, tokens_per_day=100)
    spend(bob, 100)
    assert send(person)
    with pytest.raises(errors.QuotaExceeded):
        send(bob)
