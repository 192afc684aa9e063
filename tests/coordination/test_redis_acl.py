"""Each kind of process has a user of its own in Redis: it can do its work, and a GPU worker nothing else."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis as redis_py
from kombu import Consumer, Exchange, Queue
from redis.exceptions import NoPermissionError

from chatsite import redis_acl
from chatsite.cache import RedisOrOwnMemory
from chatsite.celery import app as site_app
from inference import celery
from inference.client import InferenceClient, Swept
from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.event_log import EventLog
from inference.coordination.lease import Leases
from inference.coordination.registry import Registry
from inference.coordination.swap_orders import Orders
from inference.coordination.waiting_room import Claim, WaitingRoom
from inference.messages.cards import WorkerCard
from inference.messages.generation import FinishReason
from inference.messages.swap import SwapOrder, SwapReport
from tests.coordination.conftest import MODEL, delta, finish, make_request, worker_card

ROOT = Path(__file__).resolve().parents[2]
PASSWORDS = {role: f"{role}-Ab.cd_ef~1" for role in redis_acl.ROLES}

As = Callable[[str], InferenceConfig]


@pytest.fixture
def as_user(redis: redis_py.Redis, config: InferenceConfig) -> Iterator[As]:
    """The settings of a process of that role. The run's own user stays as it is."""
    for line in redis_acl.lines(PASSWORDS)[1:]:
        redis.execute_command("ACL", "SETUSER", *line.split()[1:])
    address = urlsplit(config.redis_url)

    def settings(role: str) -> InferenceConfig:
        url = f"redis://{role}:{PASSWORDS[role]}@{address.hostname}:{address.port}/0"
        return dataclasses.replace(config, redis_url=url)

    yield settings
    redis.execute_command("ACL", "DELUSER", *redis_acl.ROLES)


@pytest.fixture
def gpu(as_user: As) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(as_user("gpu").redis_url) as connection:
        yield connection


def taken(config: InferenceConfig, queue: str, side: str) -> list[str]:
    """The tasks that lie in a queue, as a Celery worker takes them: popped, kept as unacknowledged, acknowledged."""
    tasks: list[str] = []

    def take(body: Any, message: Any) -> None:
        tasks.append(message.headers["task"])
        message.ack()

    app = celery.configure(celery.Celery(set_as_current=False, fixups=()), config, side)
    with app.connection_for_read() as connection:
        declared = Queue(queue, Exchange(queue), routing_key=queue)
        with Consumer(connection, [declared], callbacks=[take], accept=app.conf.accept_content) as consumer:
            connection.drain_events(timeout=10)
            consumer.channel.qos.restore_visible()  # what a worker that died had taken
    app.close()
    return tasks


def test_an_answer_goes_its_way_with_each_process_as_its_own_user(redis: redis_py.Redis, as_user: As) -> None:
    as_gpu = as_user("gpu")
    gpu = redis_py.Redis.from_url(as_gpu.redis_url)
    web, site = InferenceClient(as_user("web")), InferenceClient(as_user("site"))
    registry, room = Registry(gpu), WaitingRoom(gpu, as_gpu)
    log, leases, orders = EventLog(gpu, as_gpu), Leases(gpu, as_gpu), Orders(gpu)
    producer = celery.producer(as_gpu)

    kit = registry.store_kit(b"a kit")
    card = worker_card("w0")
    registry.announce(WorkerCard(**{**_fields(card), "model": _with_kit(card, kit)}))
    assert [model.name for model in web.models()] == [MODEL]
    first, second, third = (make_request(user) for user in ("ann", "bea", "cay"))
    web.submit(first)
    assert taken(as_gpu, redis_keys.queue(MODEL), "generate") == [celery.GENERATE_TASK]
    stops = gpu.pubsub(ignore_subscribe_messages=True)
    stops.subscribe(redis_keys.STOPS)
    assert stops.get_message(timeout=5) is None
    claim = room.claim(MODEL, "w0")
    assert isinstance(claim, Claim)
    assert leases.renew([(first.id, claim.ticket)])[0].held
    assert log.append([(first.id, claim.ticket, delta("a"))])[0].seq == 1
    web.cancel(first.id)
    heard = stops.get_message(timeout=5)
    assert heard is not None
    assert heard["data"] == str(first.id).encode()
    assert log.finish(first.id, claim.ticket, finish()).seq == 2
    celery.send_record(first.id, app=producer)
    assert taken(as_user("site"), celery.SITE_QUEUE, "site") == [celery.RECORD_TASK]
    end = site.read(first.id).finish
    assert end is not None
    assert end.reason is FinishReason.STOP
    assert site.record(first.id)

    web.submit(second)
    again = room.claim(MODEL, "w0")
    assert isinstance(again, Claim)
    assert room.release(second.id, again.ticket)
    assert isinstance(room.claim(MODEL, "w0"), Claim)
    assert leases.lapse(second.id, force=True)
    assert site.sweep(second.id, stop_requested=False) is Swept.ENTERED
    web.submit(third)
    assert web.standing(third.id).state == "waiting"
    assert leases.expired() == []
    assert room.num_unfinished(MODEL) == 2
    assert room.waiting_since(MODEL) is not None

    order = SwapOrder(id=uuid4(), model="other", timeout_seconds=1.0)
    assert web.order_swap("w0", order)
    assert orders.current("w0") == order
    orders.keep("w0")
    orders.report(SwapReport(order=order.id, state="ready"))
    orders.take_away("w0", order.id)
    assert web.swap_report(order.id) is not None
    registry.withdraw("w0")
    assert web.forget_user("ann") > 0
    for opened in (web, site, producer, stops, gpu):
        opened.close()


def _fields(card: WorkerCard) -> dict[str, Any]:
    return {name: getattr(card, name) for name in card.__struct_fields__}


def _with_kit(card: WorkerCard, kit: str) -> Any:
    return type(card.model)(
        **{**{name: getattr(card.model, name) for name in card.model.__struct_fields__}, "prompt_kit": kit}
    )


REFUSED = [
    "GET {smolfleet}:cache:2:a",
    "SET {smolfleet}:cache:2:a planted",
    "DEL {smolfleet}:cache:2:a",
    "GET {smolfleet}:rate:ann",
    "SET {smolfleet}:site_worker 1",
    "LRANGE {smolfleet}:celery:site 0 -1",
    "RPOP {smolfleet}:celery:site",
    "HGETALL {smolfleet}:celery:unacked.site",
    "GET elsewhere",
    "SET elsewhere 1",
    "COPY {smolfleet}:gen:1 {smolfleet}:cache:2:a",
    "RENAME {smolfleet}:gen:1 {smolfleet}:cache:2:a",
    "SORT {smolfleet}:workers BY {smolfleet}:cache:2:*",
    "SUBSCRIBE {smolfleet}:list:ann",
    "PSUBSCRIBE *",
    "PUBLISH {smolfleet}:conversation:1 x",
    "PUBSUB CHANNELS",
    "KEYS *",
    "SCAN 0",
    "RANDOMKEY",
    "DBSIZE",
    "INFO",
    "CONFIG GET *",
    "CONFIG SET dir /tmp",
    "FLUSHALL",
    "FLUSHDB",
    "SWAPDB 0 1",
    "SELECT 1",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "FUNCTION LIST",
    "MODULE LIST",
    "ACL LIST",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "CLIENT PAUSE 1",
    "MONITOR",
    "SAVE",
    "SHUTDOWN",
    "REPLICAOF NO ONE",
    "MIGRATE 127.0.0.1 1 {smolfleet}:gen:1 0 1",
    "DUMP {smolfleet}:cache:2:a",
    "RESTORE {smolfleet}:cache:2:a 0 x",
]


@pytest.mark.parametrize("command", REFUSED)
def test_a_gpu_worker_reaches_nothing_that_is_not_its_own(gpu: redis_py.Redis, command: str) -> None:
    with pytest.raises(NoPermissionError):
        gpu.execute_command(*command.split())


@pytest.mark.parametrize("body", ["redis.call('GET', '{smolfleet}:cache:2:a')", "redis.call('FLUSHALL')"])
def test_a_script_of_a_gpu_worker_reaches_no_more_than_it(gpu: redis_py.Redis, body: str) -> None:
    with pytest.raises(redis_py.ResponseError, match=r"(?i)permission|NOPERM|can.t (run|access)"):
        gpu.eval(f"return {body}", 0)


def test_site_worker_reaches_no_cache_and_nobody_changes_the_server(as_user: As) -> None:
    with redis_py.Redis.from_url(as_user("site").redis_url) as site:
        for command in ("GET {smolfleet}:cache:2:a", "SET {smolfleet}:cache:2:a 1", "FLUSHALL", "CONFIG GET *"):
            with pytest.raises(NoPermissionError):
                site.execute_command(*command.split())
    with redis_py.Redis.from_url(as_user("web").redis_url) as web:
        for command in ("GET elsewhere", "FLUSHALL", "FLUSHDB", "CONFIG GET *", "KEYS *", "SCRIPT FLUSH"):
            with pytest.raises(NoPermissionError):
                web.execute_command(*command.split())


def test_the_web_process_keeps_its_cache(as_user: As) -> None:
    cache = RedisOrOwnMemory(as_user("web").redis_url, {"KEY_PREFIX": "{smolfleet}:cache", "VERSION": 2})
    cache.set("a", [1.0], timeout=30)
    assert cache.add("a", True) is False
    assert cache.get("a") == [1.0]
    cache.clear()
    assert cache.get("a") is None


def test_a_message_that_is_no_json_is_refused_unread(redis: redis_py.Redis, config: InferenceConfig) -> None:
    """As a GPU worker could put it on the site worker's queue."""
    app = celery.configure(celery.Celery(set_as_current=False, fixups=()), config, "site")
    heard: list[Any] = []
    refused: list[Exception] = []
    with app.connection_for_read() as connection:
        queue = Queue(celery.SITE_QUEUE, Exchange(celery.SITE_QUEUE), routing_key=celery.SITE_QUEUE)
        with connection.Producer(serializer="pickle") as producer:
            producer.publish({"a": 1}, routing_key=celery.SITE_QUEUE, exchange=queue.exchange, declare=[queue])
        with Consumer(
            connection,
            [queue],
            callbacks=[lambda body, message: heard.append(body)],
            accept=app.conf.accept_content,
            on_decode_error=lambda message, error: (refused.append(error), message.ack()),
        ):
            connection.drain_events(timeout=10)
    app.close()
    assert not heard
    assert "ContentDisallowed" in repr(refused)


@pytest.mark.parametrize("app", [celery.app, site_app], ids=["workers", "site"])
def test_celery_takes_and_gives_json_alone_and_is_controlled_by_nobody(app: Any) -> None:
    assert (app.conf.accept_content, app.conf.result_accept_content) == (["json"], ["json"])
    assert {app.conf.task_serializer, app.conf.result_serializer, app.conf.event_serializer} == {"json"}
    assert not app.conf.worker_enable_remote_control
    assert app.conf.result_backend is None


# -- what docker-compose.yml starts


def test_file_for_containers_has_these_rules() -> None:
    assert (ROOT / "docker/redis/users.acl").read_text() == redis_acl.template()


def started(tmp_path: Path, **passwords: str) -> subprocess.CompletedProcess[str]:
    """docker/redis/start.sh with a server that only says how it was started."""
    server = tmp_path / "valkey-server"
    server.write_text('#!/bin/sh\necho "$@"\n')
    server.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ACL_FILE": str(tmp_path / "users.acl"), **passwords}
    script = ROOT / "docker/redis/start.sh"
    return subprocess.run(["sh", str(script), "--appendonly", "yes"], env=env, capture_output=True, text=True)


def test_container_starts_with_the_rules_and_the_passwords_of_its_environment(tmp_path: Path) -> None:
    done = started(tmp_path, **{f"REDIS_{role.upper()}_PASSWORD": PASSWORDS[role] for role in PASSWORDS})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"--aclfile {tmp_path}/users.acl --appendonly yes\n"
    assert (tmp_path / "users.acl").read_text().splitlines() == redis_acl.lines(PASSWORDS)


@pytest.mark.parametrize("password", ["", "Ab/cd+ef=", "a b", "p#w", "a@b", "p%41", "short"])
def test_container_refuses_a_password_that_cannot_stand_in_an_address(tmp_path: Path, password: str) -> None:
    passwords = {f"REDIS_{role.upper()}_PASSWORD": PASSWORDS[role] for role in PASSWORDS}
    done = started(tmp_path, **{**passwords, "REDIS_GPU_PASSWORD": password})
    assert done.returncode == 1
    assert "REDIS_GPU_PASSWORD" in done.stderr
    assert not password or password not in done.stderr
