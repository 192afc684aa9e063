"""Several models: a conversation's next message goes to what is there, an answer never waits for what is gone."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
import redis as redis_py
from django.core.management import CommandError, call_command
from django.test import Client

from chatsite.accounts.models import User, new_id
from chatsite.chat import inference, tasks
from chatsite.chat.actions import answer, send
from chatsite.chat.errors import ModelUnknown
from chatsite.chat.generation import model_choice, record
from chatsite.chat.generation import request as generation_request
from chatsite.chat.generation.reassign import GoneModels
from chatsite.chat.models import Generation
from inference.coordination import redis_keys
from inference.coordination.registry import Registry
from inference.coordination.swap_orders import Orders
from inference.messages.cards import ModelCard, WorkerCard
from inference.messages.serialization import encode
from inference.messages.swap import SwapOrder, SwapReport
from tests.web.chat_worker import MODEL, StepWorker

Serve = Callable[..., None]


@pytest.fixture
def serve(redis: redis_py.Redis, site: Any) -> Serve:
    """Have a worker announce that it serves a model."""

    def announce(name: str, model: str, **facts: Any) -> None:
        card = ModelCard(name=model, title=model.title(), architecture="none", context_tokens=400, prompt_kit="none")
        now = time.time()
        facts = {"device": "test", "num_slots": 2, "num_free_slots": 1, **facts}
        Registry(redis).announce(
            WorkerCard(name=name, model=card, started_at=now, seen_at=now, **facts), ttl_seconds=600
        )

    return announce


@pytest.fixture
def gone_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_gone_models", GoneModels(gone_seconds=0.0))


def test_conversation_keeps_its_model_while_somebody_has_it(serve: Serve) -> None:
    serve("a", "one")
    serve("b", "two", state="loading")
    serve("c", "three", state="draining")
    for name in ("one", "two", "three"):
        assert model_choice.choose(name) == model_choice.Choice(name)


def test_message_to_a_model_that_is_gone_or_leaving_goes_to_one_that_stays(serve: Serve, site: Any) -> None:
    serve("a", "one", next_model="two")
    assert model_choice.choose("one").model == "two", "nobody else is there: wait for what comes"
    serve("b", "three", state="loading")
    serve("c", "zed")
    chosen = model_choice.choose("one")
    assert (chosen.model, chosen.instead_of) == ("zed", "one")
    assert chosen.sentence == "one is not served now; Zed answers."
    assert model_choice.choose("gone").model == "zed"
    serve("d", "one")
    assert model_choice.choose("one") == model_choice.Choice("one"), "another worker keeps to it"
    site(default_model="zed")
    serve("e", "alpha")
    assert model_choice.choose("gone").model == "zed", "the site's own before others"


def test_site_without_a_default_begins_with_what_is_there(serve: Serve, site: Any, alice: User) -> None:
    site(default_model="")
    with pytest.raises(ModelUnknown):
        model_choice.choose("")
    serve("a", "old", next_model="new")
    assert model_choice.choose("") == model_choice.Choice("new")
    serve("a", "new", state="loading")
    assert model_choice.choose("").model == "new"
    serve("b", "beta")
    assert model_choice.choose("") == model_choice.Choice("beta", "Beta")


def test_name_may_be_chosen_while_it_is_coming_or_was_there_lately(serve: Serve, alice: User) -> None:
    serve("a", "one", next_model="two")
    for name in ("one", "two"):
        assert send.start_conversation(alice, model=name).model == name
    with pytest.raises(ModelUnknown):
        send.start_conversation(alice, model="three")
    Generation.objects.create(user=alice, model="three")
    assert send.start_conversation(alice, model="three").model == "three"


def test_page_says_in_one_sentence_that_another_model_answers(serve: Serve, alice: User, client: Client) -> None:
    client.force_login(alice)
    serve("a", "one")
    conversation = send.start_conversation(alice, model="one")
    sentence = "one is not served now; Two answers."
    assert sentence not in client.get(f"/chat/{conversation.pk}/").content.decode()
    serve("a", "two")
    assert sentence in client.get(f"/chat/{conversation.pk}/").content.decode()
    sent = client.post(
        f"/chat/{conversation.pk}/send/", {"text": "hi", "key": str(uuid.uuid4())}, headers={"HX-Request": "true"}
    )
    assert sentence in sent.content.decode()
    generation = Generation.objects.get()
    assert (generation.model, generation_request.frozen_request_of(generation).model) == ("two", "two")
    conversation.refresh_from_db()
    assert conversation.model == "one", "it goes back once its own is served again"


def test_answer_that_waits_for_a_model_that_is_gone_is_moved(
    serve: Serve, alice: User, worker: StepWorker, redis: redis_py.Redis, gone_at_once: None
) -> None:
    serve("a", "one")
    sent = send.send_message(alice, send.start_conversation(alice, model="one"), "hi")
    tasks.sweep()
    Registry(redis).withdraw("a")
    _sweep(sent.generation)
    assert sent.generation.model == "one", "nobody else is there: it waits"
    worker.announce()
    _sweep(sent.generation)
    assert sent.generation.model == MODEL
    attempt = worker.claim().start()
    assert attempt.claim.request.messages[-1].content == "hi"
    attempt.write("hello")
    attempt.finish()
    record.record(sent.generation.pk)
    sent.answer.refresh_from_db()
    assert sent.answer.content == "hello"


def test_answer_is_not_moved_while_its_model_may_come_back(
    serve: Serve, alice: User, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch, gone_at_once: None
) -> None:
    serve("a", "one")
    sent = send.send_message(alice, send.start_conversation(alice, model="one"), "hi")
    serve("b", "two")
    for facts in ({"state": "loading"}, {"state": "draining"}, {"next_model": "two"}):
        serve("a", "one", **facts)
        _sweep(sent.generation)
        assert sent.generation.model == "one", facts
    monkeypatch.setattr(tasks, "_gone_models", GoneModels(gone_seconds=60.0))
    Registry(redis).withdraw("a")
    _sweep(sent.generation)
    assert sent.generation.model == "one", "gone for too short a time"


def test_answer_whose_move_was_cut_short_is_entered_again(
    serve: Serve, alice: User, worker: StepWorker, gone_at_once: None
) -> None:
    """The process died after Redis had forgotten it."""
    serve("a", "one")
    sent = send.send_message(alice, send.start_conversation(alice, model="one"), "hi")
    inference.forget(sent.generation.pk)
    Registry(worker.redis).withdraw("a")
    worker.announce()
    _sweep(sent.generation)
    _sweep(sent.generation)
    assert sent.generation.model == MODEL
    assert worker.claim().id == sent.generation.pk


def test_request_of_the_api_that_waits_for_a_model_that_is_gone_fails_and_says_so(
    serve: Serve, alice: User, worker: StepWorker, gone_at_once: None
) -> None:
    """Its caller named the model; no other may answer."""
    worker.announce()
    request = generation_request.request_for(
        new_id(), send.start_conversation(alice), (), model="gone", sampling=answer.MODEL_SAMPLING
    )
    row = Generation.objects.create(
        pk=request.id, user=alice, source="api", model="gone", request=encode(request).decode()
    )
    inference.submit(request)
    _sweep(row)
    _sweep(row)
    assert (row.status, row.error_code, row.is_retryable) == ("failed", "model_not_served", True)
    assert row.error_message == "No worker serves gone any more."


def test_api_takes_nothing_for_a_model_that_is_leaving(serve: Serve) -> None:
    from chatsite.api import completion, errors

    serve("a", "one", next_model="two")
    with pytest.raises(errors.Unavailable):
        completion._expect_served("one", inference.inference_client().workers(), "")
    serve("b", "one")
    completion._expect_served("one", inference.inference_client().workers(), "")


def _sweep(generation: Generation) -> None:
    from tests.web.test_tasks import sweep

    sweep(generation)


# -- the command


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("worker", *arguments, stdout=out)
    return out.getvalue()


def test_list_is_a_table(serve: Serve) -> None:
    assert run("list") == "No worker is there.\n"
    serve("gpu-1", "one", notes=("Said.",), degradations=("No GPU.",))
    serve("gpu-10", "two", next_model="one")
    assert run("list").splitlines() == [
        "NAME    MODEL  STATE                   FREE  DEVICE  NOTES",
        "gpu-1   one    ready                   1/2   test    No GPU. Said.",
        "gpu-10  two    ready, changing to one  1/2   test    -",
    ]


def test_swap_of_a_worker_that_is_not_there_is_refused(serve: Serve) -> None:
    with pytest.raises(CommandError, match="No worker is called b; there are: none"):
        run("swap", "b", "two")
    serve("a", "one")
    with pytest.raises(CommandError, match="No worker is called b; there are: a"):
        run("swap", "b", "two")


def test_second_swap_is_refused(serve: Serve, redis: redis_py.Redis) -> None:
    serve("a", "one")
    assert Orders(redis).give("a", SwapOrder(id=new_id(), model="two", timeout_seconds=1.0))
    with pytest.raises(CommandError, match="a is changing its model already"):
        run("swap", "a", "three")


@pytest.mark.parametrize("timeout", ["-1", "nan", "1e9"])
def test_timeout_out_of_range_is_refused(serve: Serve, timeout: str) -> None:
    serve("a", "one")
    with pytest.raises(CommandError, match="--timeout"):
        run("swap", "a", "two", f"--timeout={timeout}")


def test_worker_that_takes_no_order_is_said_to(
    serve: Serve, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatsite.management.commands.worker.TAKE_SECONDS", 0.2)
    serve("a", "one")
    with pytest.raises(CommandError, match="did not take the order"):
        run("swap", "a", "two")
    assert not redis.exists(redis_keys.swap("a")), "an order nobody waits for must not be carried out later"


def test_worker_that_dies_midway_is_said_to_be_gone(
    serve: Serve, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatsite.management.commands.worker.DEAD_SECONDS", 0.3)
    serve("a", "one")
    order = SwapOrder(id=new_id(), model="two", timeout_seconds=5.0)
    monkeypatch.setattr("chatsite.management.commands.worker.SwapOrder", lambda **_: order)
    Orders(redis).report(SwapReport(order=order.id, state="loading", model="two"))
    redis.pexpire(redis_keys.worker("a"), 300)
    with pytest.raises(CommandError, match="a is gone"):
        run("swap", "a", "two")


@pytest.mark.parametrize("state", ["ready", "refused", "called_off", "failed"])
def test_every_end_of_a_swap_has_its_exit(
    serve: Serve, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    serve("a", "one")
    order = SwapOrder(id=new_id(), model="two", timeout_seconds=5.0)
    monkeypatch.setattr("chatsite.management.commands.worker.SwapOrder", lambda **_: order)
    end = SwapReport(order=order.id, state=state, model="two", sentence="" if state == "ready" else "It says why.")  # type: ignore[arg-type]
    Orders(redis).report(end)
    if state == "ready":
        assert run("swap", "a", "two").splitlines() == ["checking two", "ready: a serves two"]
    else:
        with pytest.raises(CommandError, match=r"^It says why\.$"):
            run("swap", "a", "two")
