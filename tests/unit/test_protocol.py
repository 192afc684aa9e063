"""The structs that cross processes: they come back as sent, bad ones are refused, threads may meet them together."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from inference.coordination.log_view import Cursor
from inference.errors import InvalidRequest
from inference.messages.cards import WorkerCard
from inference.messages.generation import (
    ChatMessage,
    Delta,
    Event,
    EventKind,
    Finish,
    FinishReason,
    GenerationRequest,
    Role,
    SamplingParams,
    Usage,
)
from inference.messages.serialization import decode, encode

ROOT = Path(__file__).resolve().parents[2]

FIRST_USE_BY_EIGHT_THREADS = """
import sys, threading
from inference.messages import generation as p, serialization

sys.setswitchinterval(1e-6)
data = serialization.encode(p.Event(kind=p.EventKind.FINISH, finish=p.Finish(reason=p.FinishReason.STOP)))
together = threading.Barrier(8)

def read():
    together.wait()
    for _ in range(20):
        serialization.decode(data, p.Event)

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_first_use_by_many_threads_at_once_does_not_crash_the_process() -> None:
    """A site worker died of it: msgspec builds what it knows of a type at first use, and not safely."""
    for _ in range(12):
        done = subprocess.run([sys.executable, "-c", FIRST_USE_BY_EIGHT_THREADS], cwd=ROOT, check=False)
        assert done.returncode == 0


def test_no_code_leaves_the_first_look_at_a_type_to_chance() -> None:
    for folder in ("inference", "chatsite"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"msgspec\.(json|msgpack)\.decode\([^)]*type=", path.read_text()), path


def test_request_comes_back_as_it_went() -> None:
    request = GenerationRequest(
        id=uuid.uuid4(),
        model="m",
        user_key="u",
        messages=(ChatMessage(role=Role.USER, content="hi 👩‍💻"),),
        sampling=SamplingParams(temperature=0.5, stop=("x",)),
    )
    assert decode(encode(request), GenerationRequest) == request


def test_event_comes_back_as_it_went() -> None:
    finish = Finish(reason=FinishReason.LENGTH, usage=Usage(prompt_tokens=3), num_chars=2)
    event = Event(kind=EventKind.FINISH, seq=7, deltas=(Delta("content", "ab"),), tokens=(1, 2), finish=finish)
    assert decode(encode(event), Event) == event


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b'{"kind": "nope"}', b"\xff", b'{"kind": "delta", "seq": "x"}'])
def test_what_is_no_event_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not a Event"):
        decode(data, Event)


def test_cursor_is_read_back_and_anything_else_is_none() -> None:
    cursor = Cursor("ab12", 42)
    assert Cursor.parse(str(cursor)) == cursor
    for text in ("", "ab12", "ab12:", ":4", "ab12:-1", "AB12:1", "ab12:1:2", "ab12: 1", "ab12:" + "9" * 30):
        assert Cursor.parse(text) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 3.0),
        ("frequency_penalty", -3.0),
        ("max_tokens", 0),
        ("seed", 2**64),
        ("stop", ("",)),
        ("stop", ("x" * 257,)),
        ("stop", ("x",) * 17),
    ],
)
def test_sampling_value_out_of_range_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**{name: value}).check()  # type: ignore[arg-type]
    assert refused.value.param == name


def test_own_values_go_before_defaults() -> None:
    defaults = SamplingParams(temperature=0.6, top_p=0.95, stop=("end",))
    assert SamplingParams(temperature=0.0).over(defaults) == SamplingParams(temperature=0.0, top_p=0.95, stop=("end",))


def test_what_an_older_worker_leaves_out_has_its_default() -> None:
    """Fields that came later: a worker of the version before may still write, and read, without them."""
    written = encode(Finish(reason=FinishReason.STOP, num_dropped_messages=3))
    assert decode(written, Finish).num_dropped_messages == 3
    assert decode(b'{"reason":"stop","usage":{}}', Finish).num_dropped_messages == 0
    model = '{"name":"m","title":"M","architecture":"llama","context_tokens":512,"prompt_kit":""}'
    facts = '"num_slots":1,"num_free_slots":1,"device":"CPU","started_at":0,"seen_at":0,"notes":["n"]'
    card = decode(f'{{"name":"w","model":{model},{facts},"of_tomorrow":1}}', WorkerCard)
    assert (card.notes, card.degradations, card.model.adapters) == (("n",), (), ())
