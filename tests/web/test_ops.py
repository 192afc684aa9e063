"""Probes and the ops page tell the truth in every state of the services, within two seconds."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from chatsite.accounts.models import User
from chatsite.chat.models import Generation
from chatsite.ops import health, heartbeat, metrics
from inference.coordination.registry import Registry
from inference.messages.cards import ModelCard, WorkerCard

PROMISE_SECONDS = 2.0

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh_connections() -> Iterator[None]:
    """Each test asks at the addresses of its own settings."""
    for made in (health.client, heartbeat.connection):
        made.cache_clear()
    yield
    for made in (health.client, heartbeat.connection):
        if made.cache_info().currsize:
            made().close()
        made.cache_clear()
    for question in (health._postgres, health._fleet, health._site_worker):
        if question._pending is not None:
            question._pending.exception(timeout=30)  # its thread is over before the next test


def card(name: str = "gpu-1", **changes: Any) -> WorkerCard:
    facts: dict[str, Any] = {
        "name": name,
        "model": ModelCard(
            name="smollm3-3b", title="SmolLM3 3B", architecture="smollm3", context_tokens=8192, prompt_kit=""
        ),
        "num_slots": 8,
        "num_free_slots": 5,
        "device": "H100",
        "started_at": time.time(),
        "seen_at": time.time(),
        **changes,
    }
    return WorkerCard(**facts)


@pytest.fixture
def fleet(redis: redis_py.Redis) -> Registry:
    """All well: a site worker's sign of life and one GPU worker."""
    heartbeat.beat()
    registry = Registry(redis)
    registry.announce(card())
    return registry


def ask(client: Client, path: str = "/health/ready", **extra: Any) -> Any:
    started = time.monotonic()
    response = client.get(path, **extra)
    assert time.monotonic() - started < PROMISE_SECONDS
    return response


def away(settings: LazySettings, url: str) -> None:
    settings.REDIS_URL = url
    settings.INFERENCE = dataclasses.replace(settings.INFERENCE, redis_url=url)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts and never says a word: worse than one that refuses."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gauges(client: Client, **extra: Any) -> dict[str, float]:
    response = ask(client, "/metrics", **extra)
    assert response.status_code == 200
    return {
        "/".join((sample.name, *(value for _, value in sorted(sample.labels.items())))): sample.value
        for family in text_string_to_metric_families(response.content.decode())
        for sample in family.samples
    }


def test_ready_when_all_is_well(client: Client, fleet: Registry) -> None:
    response = ask(client)
    found = response.json()
    assert response.status_code == 200
    assert found["ready"] is True
    assert found["reasons"] == []
    assert found["checks"]["models"] == [
        {"name": "smollm3-3b", "title": "SmolLM3 3B", "context_tokens": 8192, "workers": 1}
    ]
    assert found["checks"]["workers"][0]["free_slots"] == 5
    assert response["Cache-Control"] == "no-store"


def test_degradations_are_said_while_ready_and_counted_and_notes_are_none(
    client: Client, fleet: Registry, django_user_model: type[User]
) -> None:
    fleet.announce(card(degradations=("No GPU can be used here.", "Memory was short."), notes=("No model was named.",)))
    found = ask(client).json()
    assert found["ready"] is True
    assert found["degraded"] == ["gpu-1: No GPU can be used here.", "gpu-1: Memory was short."]
    assert found["checks"]["workers"][0]["notes"] == ["No model was named."]
    assert gauges(client)["smolfleet_worker_degradations/smollm3-3b/gpu-1"] == 2.0
    client.force_login(django_user_model.objects.create_user("olga", is_staff=True))
    page = client.get("/ops/").content.decode()
    assert "Ready, but degraded." in page
    assert all(f"gpu-1: {sentence}" in page for sentence in ("No GPU can be used here.", "No model was named."))
    fleet.announce(card(notes=("No model was named.",)))
    assert ask(client).json()["degraded"] == []
    assert "Ready." in client.get("/ops/").content.decode()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "loading"}, "A worker is loading smollm3-3b."),
        ({"state": "draining"}, "No worker takes new work: all are draining or stuck."),
        ({"engine_idle_seconds": 45.0}, "No worker takes new work: all are draining or stuck."),
    ],
)
def test_worker_that_answers_nobody_is_no_worker(
    client: Client, fleet: Registry, changes: dict[str, Any], reason: str
) -> None:
    fleet.announce(card(**changes))
    response = ask(client)
    assert response.status_code == 503
    assert response.json()["reasons"] == [reason]


def test_not_ready_without_a_worker(client: Client, fleet: Registry) -> None:
    fleet.withdraw("gpu-1")
    response = ask(client)
    assert response.status_code == 503
    assert response.json()["reasons"] == ["No worker serves a model."]


def test_not_ready_without_a_site_worker(client: Client, fleet: Registry, redis: redis_py.Redis) -> None:
    redis.delete(heartbeat.KEY)
    response = ask(client)
    assert response.status_code == 503
    assert response.json()["checks"]["site_worker"]["ok"] is False


@pytest.mark.parametrize("port", ["closed_port", "silent_port"])
def test_not_ready_without_redis(
    client: Client, settings: LazySettings, request: pytest.FixtureRequest, port: str
) -> None:
    away(settings, f"redis://127.0.0.1:{request.getfixturevalue(port)}/0")
    response = ask(client)
    checks = response.json()["checks"]
    assert response.status_code == 503
    assert (checks["redis"]["ok"], checks["postgres"]["ok"], checks["site_worker"]["ok"]) == (False, True, False)


@pytest.mark.parametrize("port", ["closed_port", "silent_port"])
def test_not_ready_without_postgres(
    client: Client, fleet: Registry, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, port: str
) -> None:
    number = str(request.getfixturevalue(port))
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
        patch.setitem(connection.settings_dict, "PORT", number)
        response = ask(client)
        # A signed-in browser's cookie must not make a probe look into the session table.
        client.cookies["sessionid"] = "0" * 32
        assert ask(client, "/health/live").status_code == 200
        found = gauges(client)
    checks = response.json()["checks"]
    assert response.status_code == 503
    assert (checks["redis"]["ok"], checks["postgres"]["ok"], checks["site_worker"]["ok"]) == (True, False, True)
    assert found["smolfleet_up/postgres"] == 0.0
    assert found["smolfleet_up/redis"] == 1.0


def test_many_probes_of_a_silent_service_hold_one_thread(
    client: Client, settings: LazySettings, silent_port: int
) -> None:
    away(settings, f"redis://127.0.0.1:{silent_port}/0")
    pending = []
    for _ in range(3):
        ask(client)
        pending.append(health._fleet._pending)
    assert len(set(map(id, pending))) <= 2  # a question may just have come back


def test_live_asks_nothing(client: Client, settings: LazySettings, closed_port: int) -> None:
    away(settings, f"redis://127.0.0.1:{closed_port}/0")
    response = ask(client, "/health/live")
    assert (response.status_code, response.json()) == (200, {"live": True})


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics"])
def test_probes_answer_whatever_host_is_named_and_only_reads(client: Client, fleet: Registry, path: str) -> None:
    assert client.get(path, headers={"host": "10.0.0.7:8000"}).status_code == 200
    assert client.post(path).status_code == 405


def test_metrics_count_what_is_there(client: Client, fleet: Registry, django_user_model: type[User]) -> None:
    user = django_user_model.objects.create_user("ann")
    for _ in range(2):
        Generation.objects.create(user=user, model="smollm3-3b", source=Generation.Source.API)
    found = gauges(client)
    assert found["smolfleet_ready"] == 1.0
    assert found["smolfleet_slots/smollm3-3b/gpu-1"] == 8.0
    assert found["smolfleet_free_slots/smollm3-3b/gpu-1"] == 5.0
    assert found["smolfleet_workers/smollm3-3b/ready"] == 1.0
    assert found["smolfleet_generations_active/smollm3-3b"] == 2.0
    assert found["smolfleet_generations_recent/active"] == 2.0
    assert found["smolfleet_waiting/smollm3-3b"] == 0.0


def test_metrics_answer_without_redis(client: Client, settings: LazySettings, closed_port: int) -> None:
    away(settings, f"redis://127.0.0.1:{closed_port}/0")
    found = gauges(client)
    assert (found["smolfleet_up/redis"], found["smolfleet_up/postgres"]) == (0.0, 1.0)
    assert not any(name.startswith("smolfleet_slots") for name in found)


def test_metrics_are_for_loopback_or_the_token(client: Client, settings: LazySettings, fleet: Registry) -> None:
    assert client.get("/metrics", REMOTE_ADDR="203.0.113.9").status_code == 403
    assert client.get("/metrics", headers={"x-forwarded-for": "203.0.113.9"}).status_code == 403  # a proxy on this host
    settings.SMOLFLEET = settings.SMOLFLEET.replace(metrics_token="s3cret")
    assert client.get("/metrics").status_code == 403
    assert client.get("/metrics", headers={"authorization": "Bearer wrong"}).status_code == 403
    shown = client.get("/metrics", headers={"authorization": "Bearer s3cret"}, REMOTE_ADDR="203.0.113.9")
    assert shown.status_code == 200


STRANGERS: dict[str, dict[str, Any]] = {
    "from elsewhere": {"REMOTE_ADDR": "203.0.113.9"},
    "through a proxy here": {"headers": {"x-forwarded-for": "203.0.113.9"}},
    "through a proxy that names the host": {"headers": {"x-forwarded-host": "chat.example.org"}},
    "through a proxy that says via": {"headers": {"via": "1.1 proxy"}},
    "with a forged token": {"REMOTE_ADDR": "203.0.113.9", "headers": {"authorization": "Bearer x"}},
    "with a forged session": {"REMOTE_ADDR": "203.0.113.9", "headers": {"cookie": "sessionid=forged"}},
    "from an address that is none": {"REMOTE_ADDR": ""},
}


@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_are_told_whether_it_is_ready_and_no_names(client: Client, fleet: Registry, who: str) -> None:
    fleet.announce(card("gpu-2", state="loading", notes=("a note",), degradations=("a lack",)))
    response = ask(client, **STRANGERS[who])
    assert (response.status_code, response.json()) == (200, {"ready": True, "reasons": []})
    fleet.withdraw("gpu-1")
    response = ask(client, **STRANGERS[who])
    assert (response.status_code, response.json()) == (503, {"ready": False, "reasons": ["No GPU worker is ready."]})
    assert client.get("/metrics", **STRANGERS[who]).status_code == 403
    assert client.get("/health/live", **STRANGERS[who]).json() == {"live": True}


def test_strangers_are_told_by_kind_what_is_away(client: Client, settings: LazySettings, closed_port: int) -> None:
    away(settings, f"redis://127.0.0.1:{closed_port}/0")
    told = ask(client, REMOTE_ADDR="203.0.113.9").json()
    assert told == {"ready": False, "reasons": ["Redis is not ready.", "The site worker is not ready."]}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_told_all(client: Client, fleet: Registry, address: str) -> None:
    assert ask(client, REMOTE_ADDR=address).json()["checks"]["workers"][0]["name"] == "gpu-1"


def test_the_token_shows_all_from_anywhere_and_nothing_else_does(
    client: Client, settings: LazySettings, fleet: Registry
) -> None:
    settings.SMOLFLEET = settings.SMOLFLEET.replace(metrics_token="s3cret")
    assert "checks" not in ask(client).json()
    shown = ask(client, headers={"authorization": "Bearer s3cret"}, REMOTE_ADDR="203.0.113.9")
    assert shown.json()["checks"]["workers"][0]["device"] == "H100"


def test_operators_are_told_all_and_other_people_are_not(
    client: Client, fleet: Registry, django_user_model: type[User]
) -> None:
    ann = django_user_model.objects.create_user("ann")
    client.force_login(ann)
    assert "checks" not in ask(client, REMOTE_ADDR="203.0.113.9").json()
    ann.is_staff = True
    ann.save()
    assert ask(client, REMOTE_ADDR="203.0.113.9").json()["checks"]["workers"][0]["name"] == "gpu-1"
    ann.is_active = False
    ann.save()
    assert "checks" not in ask(client, REMOTE_ADDR="203.0.113.9").json()


def test_first_id_since_sorts_between_older_and_newer_ids() -> None:
    assert metrics.first_id_since(60.0) < Generation().id
    assert metrics.first_id_since(-60.0) > Generation().id


def test_fleet_page_is_for_staff(client: Client, fleet: Registry, django_user_model: type[User]) -> None:
    assert client.get("/ops/").status_code == 302
    client.force_login(django_user_model.objects.create_user("ann"))
    assert client.get("/ops/").status_code == 403
    client.force_login(django_user_model.objects.create_user("olga", is_staff=True))
    page = client.get("/ops/")
    assert page.status_code == 200
    assert "gpu-1" in page.content.decode()
    assert "3 of 8" in page.content.decode()


def test_fleet_page_gives_htmx_the_inner_part_alone(
    client: Client, fleet: Registry, django_user_model: type[User]
) -> None:
    user = django_user_model.objects.create_user("olga", is_staff=True)
    client.force_login(user)
    Generation.objects.create(user=user, model="smollm3-3b", source=Generation.Source.API)
    part = client.get("/ops/", headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in part
    assert "gpu-1" in part
