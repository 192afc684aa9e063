"""Each operation's rules, one at a time, on a real server."""

from __future__ import annotations

import dataclasses
from uuid import UUID, uuid4

import msgspec
import pytest
import redis as redis_py

from inference.config import InferenceConfig
from inference.coordination import redis_keys
from inference.coordination.event_log import EventLog, parse_news
from inference.coordination.lease import Leases
from inference.coordination.waiting_room import Claim, WaitingRoom
from inference.errors import EventsExpired, InvalidRequest
from inference.messages.generation import Event, EventKind, FinishReason, GenerationRequest
from inference.messages.serialization import PROTOCOL_VERSION
from tests.coordination.conftest import MODEL, delta, finish, make_request


def claimed(room: WaitingRoom, request: GenerationRequest | None = None, worker: str = "w0") -> Claim:
    if request is not None:
        assert room.enter(request)
    claim = room.claim(MODEL, worker)
    assert isinstance(claim, Claim)
    return claim


def texts(log: EventLog, generation_id: UUID) -> list[str]:
    return [d.text for event in log.read(generation_id).events for d in event.deltas]


def test_enter_does_nothing_while_waiting_leased_or_finished(room: WaitingRoom, log: EventLog) -> None:
    request = make_request()
    assert room.enter(request)
    assert not room.enter(request)
    claim = claimed(room)
    assert not room.enter(request)
    assert not room.reenter(request.id)
    log.finish(request.id, claim.ticket, finish())
    assert not room.enter(request)
    assert room.num_waiting(MODEL) == 0


def test_reenter_knows_only_what_redis_holds(room: WaitingRoom, leases: Leases) -> None:
    assert not room.reenter(uuid4())
    claim = claimed(room, make_request())
    leases.lapse(claim.request.id, force=True)
    assert room.reenter(claim.request.id)
    assert room.standing(claim.request.id).num_lost == 1


def test_entering_over_an_expired_lease_counts_it_as_lost(redis: redis_py.Redis, config: InferenceConfig) -> None:
    room = WaitingRoom(redis, dataclasses.replace(config, lease_seconds=0.0))
    claim = claimed(room, make_request())
    assert room.standing(claim.request.id).state == "lapsed"
    assert room.enter(claim.request)
    assert room.standing(claim.request.id).num_lost == 1


def test_claim_hands_over_request_and_mark(room: WaitingRoom, log: EventLog) -> None:
    request = make_request()
    claim = claimed(room, request)
    assert claim.request == request
    assert claim.mark == log.read(request.id).mark
    assert claim.num_lost == 0
    assert room.claim(MODEL, "w1") is None


def test_lapse_waits_for_expiry_unless_forced(room: WaitingRoom, leases: Leases) -> None:
    claim = claimed(room, make_request())
    assert not leases.lapse(claim.request.id)
    assert leases.expired() == []
    assert leases.lapse(claim.request.id, force=True)
    assert not leases.lapse(claim.request.id, force=True)


def test_only_ones_own_lease_can_be_given_up(room: WaitingRoom, leases: Leases) -> None:
    old = claimed(room, make_request())
    generation = old.request.id
    assert not leases.give_up(generation, "other")
    assert room.standing(generation).state == "leased"
    assert leases.give_up(generation, old.ticket)
    assert not leases.give_up(generation, old.ticket), "once"
    assert (room.standing(generation).state, room.standing(generation).num_lost) == ("lapsed", 1)
    assert room.reenter(generation)
    assert not leases.give_up(generation, old.ticket), "it waits already"
    assert room.claim(MODEL, "w2") is not None
    assert not leases.give_up(generation, old.ticket), "another's now"
    assert room.standing(generation).num_lost == 1


def test_expired_leases_are_listed(redis: redis_py.Redis, config: InferenceConfig, leases: Leases) -> None:
    claim = claimed(WaitingRoom(redis, dataclasses.replace(config, lease_seconds=0.0)), make_request())
    assert leases.expired() == [claim.request.id]
    assert leases.lapse(claim.request.id)
    assert leases.expired() == []


def test_renewing_needs_the_ticket_and_a_standing_lease(room: WaitingRoom, leases: Leases) -> None:
    claim = claimed(room, make_request())
    held = [(claim.request.id, claim.ticket), (claim.request.id, "other"), (uuid4(), claim.ticket)]
    assert [renewal.held for renewal in leases.renew(held)] == [True, False, False]
    leases.lapse(claim.request.id, force=True)
    assert not leases.renew(held)[0].held
    assert leases.renew([]) == []


def test_ticket_outlives_a_lapse_until_the_next_claim(room: WaitingRoom, leases: Leases, log: EventLog) -> None:
    old = claimed(room, make_request())
    leases.lapse(old.request.id, force=True)
    assert log.append([(old.request.id, old.ticket, delta("a"))])[0].seq == 1
    room.reenter(old.request.id)
    assert log.append([(old.request.id, old.ticket, delta("b"))])[0].seq == 2
    new = claimed(room, worker="w1")
    assert new.num_lost == 1
    assert log.append([(old.request.id, old.ticket, delta("x"))])[0].seq is None
    assert log.finish(old.request.id, old.ticket, finish()).seq is None
    assert not room.release(old.request.id, old.ticket)
    assert log.append([(new.request.id, new.ticket, delta("c"))])[0].seq == 3
    assert texts(log, new.request.id) == ["a", "b", "c"]


def test_finish_of_one_that_reentered_leaves_the_waiting_room(room: WaitingRoom, leases: Leases, log: EventLog) -> None:
    claim = claimed(room, make_request())
    leases.lapse(claim.request.id, force=True)
    room.reenter(claim.request.id)
    assert log.finish(claim.request.id, claim.ticket, finish(), delta("last")).seq == 2
    assert room.num_waiting(MODEL) == 0
    assert room.claim(MODEL, "w1") is None
    assert texts(log, claim.request.id) == ["last"]


def test_nothing_is_written_after_finish_but_recorded_once(room: WaitingRoom, log: EventLog) -> None:
    claim = claimed(room, make_request())
    assert not log.record(claim.request.id)
    log.finish(claim.request.id, claim.ticket, finish())
    assert log.append([(claim.request.id, claim.ticket, delta("late"))])[0].seq is None
    assert not log.end(claim.request.id, finish())
    assert log.record(claim.request.id)
    assert not log.record(claim.request.id)
    assert [e.kind for e in log.read(claim.request.id).events] == [EventKind.FINISH, EventKind.RECORDED]


def test_release_goes_before_all_others_and_is_not_lost(room: WaitingRoom, log: EventLog) -> None:
    claim = claimed(room, make_request("ann"))
    for user in ("aaa", "bob"):
        room.enter(make_request(user))
    assert room.release(claim.request.id, claim.ticket)
    assert not room.release(claim.request.id, claim.ticket)
    assert log.append([(claim.request.id, claim.ticket, delta("x"))])[0].seq is None
    assert room.standing(claim.request.id).position == 1
    again = claimed(room, worker="w1")
    assert again.request.id == claim.request.id
    assert again.num_lost == 0


def test_end_of_a_waiting_one_is_seen_in_its_log(room: WaitingRoom, log: EventLog) -> None:
    request = make_request()
    room.enter(request)
    assert log.end(request.id, finish(0, 0, FinishReason.CANCELLED))
    assert not log.end(uuid4(), finish())
    read = log.read(request.id)
    assert read.finish is not None
    assert read.finish.reason is FinishReason.CANCELLED
    assert room.claim(MODEL, "w0") is None


def test_end_voids_the_ticket_of_a_running_one(room: WaitingRoom, leases: Leases, log: EventLog) -> None:
    claim = claimed(room, make_request())
    assert log.end(claim.request.id, finish())
    assert log.append([(claim.request.id, claim.ticket, delta("x"))])[0].seq is None
    assert not leases.renew([(claim.request.id, claim.ticket)])[0].held


def test_zombie_from_before_a_wipe_is_refused(redis: redis_py.Redis, room: WaitingRoom, log: EventLog) -> None:
    old = claimed(room, make_request())
    log.append([(old.request.id, old.ticket, delta("old"))])
    redis.flushall()
    with pytest.raises(EventsExpired):
        log.read(old.request.id)
    assert room.enter(old.request)
    assert log.append([(old.request.id, old.ticket, delta("x"))])[0].seq is None
    new = claimed(room)
    assert new.mark != old.mark
    assert log.append([(old.request.id, old.ticket, delta("x"))])[0].seq is None
    log.append([(new.request.id, new.ticket, delta("new"))])
    assert texts(log, new.request.id) == ["new"]


def test_numbered_event_is_written_once_and_never_over_a_hole(room: WaitingRoom, log: EventLog) -> None:
    claim = claimed(room, make_request())
    entry = (claim.request.id, claim.ticket, delta("a", seq=1))
    assert [a.seq for a in log.append([entry, entry])] == [1, 1]
    with pytest.raises(redis_py.ResponseError, match="HOLE"):
        log.append([(claim.request.id, claim.ticket, delta("c", seq=3))])
    assert texts(log, claim.request.id) == ["a"]


def test_full_log_refuses_aloud_and_still_ends(
    redis: redis_py.Redis, config: InferenceConfig, room: WaitingRoom
) -> None:
    log = EventLog(redis, config, max_bytes=400)
    claim = claimed(room, make_request())
    big = (claim.request.id, claim.ticket, delta("x" * 250))
    first, second = log.append([big, big])
    assert (first.seq, first.is_full) == (1, False)
    assert (second.seq, second.is_full) == (None, True)
    assert log.finish(claim.request.id, claim.ticket, finish()).seq == 2


def test_news_are_what_the_stream_holds_and_nothing_refused(
    redis: redis_py.Redis, room: WaitingRoom, log: EventLog
) -> None:
    claim = claimed(room, make_request())
    news = redis.pubsub(ignore_subscribe_messages=True)
    news.subscribe(redis_keys.news(claim.request.id))
    assert news.get_message(timeout=5) is None  # the acknowledgement
    started = Event(kind=EventKind.STARTED, worker="w0")
    log.append([(claim.request.id, claim.ticket, started), (claim.request.id, "other", delta("no"))])
    log.append([(claim.request.id, claim.ticket, delta('ü "quoted" {}'))])
    log.finish(claim.request.id, claim.ticket, finish(), delta("last"))
    log.record(claim.request.id)
    read = log.read(claim.request.id)
    heard = []
    while len(heard) < len(read.events):
        message = news.get_message(timeout=5)
        assert message is not None, "a message is missing"
        heard.append(parse_news(message["data"]))
    assert heard == [(read.mark, event) for event in read.events]
    assert news.get_message(timeout=0) is None
    assert [event.seq for event in log.read(claim.request.id, after=3).events] == [4, 5]
    news.close()


def test_scripts_survive_a_server_that_forgot_them(redis: redis_py.Redis, room: WaitingRoom, log: EventLog) -> None:
    claim = claimed(room, make_request())
    redis.script_flush()
    entries = [(claim.request.id, claim.ticket, delta(text)) for text in "abc"]
    assert [a.seq for a in log.append(entries)] == [1, 2, 3]
    redis.script_flush()
    assert log.finish(claim.request.id, claim.ticket, finish()).seq == 4
    assert texts(log, claim.request.id) == ["a", "b", "c"]


def test_everything_expires_after_record(
    redis: redis_py.Redis, config: InferenceConfig, room: WaitingRoom, log: EventLog
) -> None:
    claim = claimed(room, make_request())
    log.append([(claim.request.id, claim.ticket, delta("a"))])
    log.finish(claim.request.id, claim.ticket, finish())
    log.record(claim.request.id)
    for key in (redis_keys.generation(claim.request.id), redis_keys.log(claim.request.id)):
        assert 0 < redis.pttl(key) <= config.log_ttl_seconds * 1000
    assert redis.hget(redis_keys.generation(claim.request.id), "request") is None
    assert all(redis.pttl(key) > 0 for key in redis.scan_iter("*")), "a key that never expires"


def test_active_generation_is_kept_while_it_is_touched(
    redis: redis_py.Redis, room: WaitingRoom, leases: Leases
) -> None:
    claim = claimed(room, make_request())
    redis.pexpire(redis_keys.generation(claim.request.id), 5_000)
    leases.renew([(claim.request.id, claim.ticket)])
    assert redis.pttl(redis_keys.generation(claim.request.id)) > 3_600_000


def test_request_of_a_newer_version_is_refused_and_counts_as_lost(room: WaitingRoom) -> None:
    request = msgspec.structs.replace(make_request(), version=PROTOCOL_VERSION + 1)
    room.enter(request)
    with pytest.raises(InvalidRequest, match="version"):
        room.claim(MODEL, "w0")
    standing = room.standing(request.id)
    assert (standing.state, standing.num_lost) == ("lapsed", 1)


def test_claim_passes_over_what_expired_while_it_waited(redis: redis_py.Redis, room: WaitingRoom) -> None:
    gone, here = make_request("ann"), make_request("bob")
    room.enter(gone)
    room.enter(here)
    redis.delete(redis_keys.generation(gone.id))
    assert claimed(room).request.id == here.id
    assert room.num_waiting(MODEL) == 0


def test_waiting_since_is_the_eldest(room: WaitingRoom) -> None:
    assert room.waiting_since(MODEL) is None
    room.enter(make_request())
    since = room.waiting_since(MODEL)
    assert since is not None
    assert 0 <= since < 5
