"""Settings of a conversation: what is given holds from the next answer on, what is wrong is refused and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import Http404
from django.test import Client

from chatsite.accounts.models import User
from chatsite.chat import errors
from chatsite.chat.actions import answer as actions_answer
from chatsite.chat.actions import send, settings
from chatsite.chat.generation import record
from chatsite.chat.generation import request as generation_request
from chatsite.chat.models import Conversation, Generation
from chatsite.chat.views.context_usage import Gauge
from tests.web.chat_worker import MODEL, StepWorker
from tests.web.test_pages import HX, signed_in

EVERYTHING = {
    "system_prompt": "Be brief.",
    "thinking": True,
    "thinking_budget": 100,
    "temperature": 0.0,
    "top_p": 0.5,
    "max_tokens": 40,
}


def answer(worker: StepWorker, text: str = "yes") -> None:
    attempt = worker.claim().start()
    attempt.write(text)
    attempt.finish()
    record.record(attempt.id)


def request_of(sent: actions_answer.Sent) -> Any:
    return generation_request.frozen_request_of(sent.generation)


def test_settings_hold_from_the_next_answer_on(alice: User, conversation: Conversation, worker: StepWorker) -> None:
    first = send.send_message(alice, conversation, "one")
    settings.tune(alice, conversation, **EVERYTHING)  # type: ignore[arg-type]  # a test's table
    assert request_of(first).sampling.temperature is None  # what is being written goes on as it was sent
    answer(worker)
    request = request_of(send.send_message(alice, conversation, "two"))
    assert (request.thinking, request.messages[0].content) == (True, "Be brief.")
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (0.0, 0.5, 40)
    assert sampling.thinking_budget == 100


def test_settings_go_with_the_first_message_and_into_no_other_chat(alice: User, site: Any, redis: Any) -> None:
    begun = send.begin(alice, "hi", **EVERYTHING)  # type: ignore[arg-type]
    assert generation_request.frozen_request_of(Generation.objects.get()).sampling.max_tokens == 40
    other = send.begin(alice, "hi")
    assert (begun.temperature, other.temperature, other.system_prompt, other.thinking) == (0.0, None, "", None)


def test_what_is_not_given_stays_and_none_is_the_models_own(alice: User, conversation: Conversation) -> None:
    settings.tune(alice, conversation, **EVERYTHING)  # type: ignore[arg-type]
    changed = settings.tune(alice, conversation, temperature=None)
    changed.refresh_from_db()
    assert (changed.temperature, changed.top_p, changed.system_prompt) == (None, 0.5, "Be brief.")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", -0.1), ("temperature", 2.5), ("temperature", float("nan"))],
        *[("top_p", 0.0), ("top_p", 1.5), ("max_tokens", 0), ("thinking_budget", 0), ("thinking_budget", 10**9)],
    ],
)
def test_number_out_of_range_is_refused_by_name(
    alice: User, conversation: Conversation, name: str, value: float
) -> None:
    with pytest.raises(errors.InvalidSettings, match=name):
        settings.tune(alice, conversation, **{name: value})  # type: ignore[arg-type]
    conversation.refresh_from_db()
    assert getattr(conversation, name) is None


def test_model_it_has_may_stay_while_nobody_serves_it(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    Conversation.objects.update(model="gone")
    worker.announce()
    assert settings.tune(alice, conversation, model="gone", thinking=False).thinking is False
    with pytest.raises(errors.ModelUnknown):
        settings.tune(alice, conversation, model="other")
    assert settings.tune(alice, conversation, model=MODEL).model == MODEL


def test_long_instructions_are_refused_with_both_numbers(alice: User, conversation: Conversation, site: Any) -> None:
    site(max_message_chars=10)
    with pytest.raises(errors.InstructionsTooLong) as refused:
        settings.tune(alice, conversation, system_prompt="x" * 11)
    assert refused.value.facts == {"num_chars": 11, "max_chars": 10}


def test_strangers_settings_are_not_there(bob: User, conversation: Conversation) -> None:
    with pytest.raises(Http404):
        settings.tune(bob, conversation, thinking=True)
    page = signed_in(bob).post(f"/chat/{conversation.pk}/tune/", {"thinking": "on"})
    assert page.status_code == 404


@pytest.mark.parametrize("headers", [{}, HX], ids=["plain", "htmx"])
def test_form_saves_what_it_sends_alone(alice: User, conversation: Conversation, headers: dict[str, str]) -> None:
    settings.tune(alice, conversation, top_p=0.5)
    client = signed_in(alice)
    saved = client.post(f"/chat/{conversation.pk}/tune/", {"thinking": "off", "temperature": "0.7"}, headers=headers)
    assert saved.status_code == (200 if headers else 302)
    conversation.refresh_from_db()
    assert (conversation.thinking, conversation.temperature, conversation.top_p) == (False, 0.7, 0.5)
    if headers:
        assert b'value="0.7"' in saved.content


@pytest.mark.parametrize("headers", [{}, HX], ids=["plain", "htmx"])
@pytest.mark.parametrize(
    ("sent", "said"), [({"temperature": "hot"}, "Temperature"), ({"top_p": "7"}, "top_p"), ({"model": "x"}, "no model")]
)
def test_form_says_what_is_wrong(
    alice: User,
    conversation: Conversation,
    worker: StepWorker,
    headers: dict[str, str],
    sent: dict[str, str],
    said: str,
) -> None:
    worker.announce()
    refused = signed_in(alice).post(f"/chat/{conversation.pk}/tune/", sent, headers=headers)
    assert refused.status_code == 400
    assert said in refused.content.decode()
    assert refused.get("HX-Retarget", "#tuning-refusal") == "#tuning-refusal"


def test_page_offers_what_is_served_and_marks_the_chosen_model_that_is_away(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    worker.announce()
    Conversation.objects.update(model="gone")
    page = signed_in(alice).get(f"/chat/{conversation.pk}/").content.decode()
    assert f'<option value="{MODEL}">Scripted</option>' in page
    assert '<option value="gone" selected>gone (away)</option>' in page


def test_settings_of_a_first_message_come_with_its_form(alice: User, site: Callable[..., None], redis: Any) -> None:
    client: Client = signed_in(alice)
    sent = {"text": "hi", "max_tokens": "12", "temperature": "", "system_prompt": "Be brief."}
    assert client.post("/chat/", sent).status_code == 302
    begun = Conversation.objects.get()
    assert (begun.max_tokens, begun.temperature, begun.system_prompt) == (12, None, "Be brief.")
    assert client.post("/chat/", {"text": "hi", "max_tokens": "-1"}).status_code == 400


def test_gauge_shows_the_last_answers_tokens_and_warns_when_little_is_left(
    alice: User, conversation: Conversation, worker: StepWorker
) -> None:
    worker.announce(context_tokens=400)
    send.send_message(alice, conversation, "one")
    answer(worker)
    page = signed_in(alice).get(f"/chat/{conversation.pk}/").content.decode()
    assert 'aria-label="Context: 15 of 400 tokens"' in page  # 11 of prompt, 7 of answer, 3 of them thought
    assert (Gauge(79, 100).is_warning, Gauge(80, 100).is_warning, Gauge(900, 100).percent) == (False, True, 100)
