"""Logprobs are those of the content, in order, in the entry of their tokens; whatever is held back or lost between."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from inference.coordination.log_view import Log
from inference.engine.request import Logprobs
from inference.messages.generation import EventKind, FinishReason, TokenLogprob
from inference.output.deltas import OutputPipeline
from inference.output.thinking import ThinkTags
from inference.worker.attempt.output_processor import AnswerText
from tests.worker.scripted import TAGS, ScriptedWorker, Store, check_whole, text_of

MakeWorker = Callable[..., ScriptedWorker]
ANSWER = "<think>why 🏳️‍🌈?</think>\n\nnaïve café 👩‍💻, ends.\nends.\n\nends"
TEXT_TAGS = ThinkTags("<think>", "</think>")


def told(log: Log) -> list[TokenLogprob]:
    return [logprob for event in log.events for logprob in event.logprobs]


def data_of(log: Log) -> bytes:
    return b"".join(logprob.data for logprob in told(log))


def content_bytes(answer: str) -> bytes:
    return answer.partition("</think>")[2].encode()


def test_content_has_logprobs_and_thoughts_have_none(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": ANSWER})
    asked = store.enter("hello", logprobs=2)
    worker.answer()
    log = store.read(asked.id)
    check_whole(log)
    assert data_of(log) == content_bytes(ANSWER)
    for event in log.events:
        tokens = event.tokens[event.tokens.index(258) + 1 :] if 258 in event.tokens else event.tokens
        assert [logprob.data for logprob in event.logprobs] in ([], [bytes([token]) for token in tokens if token < 256])
    for logprob in told(log):
        assert -1.0 < logprob.logprob <= 0.0
        assert len(logprob.top) == 2
        assert logprob.top[0] == (logprob.data, logprob.logprob), "greedy: the chosen one is the best"
        assert math.fsum(math.exp(value) for _, value in logprob.top) <= 1.0 + 1e-6


def test_none_are_told_unasked(store: Store, make_worker: MakeWorker) -> None:
    worker = make_worker({"hello": ANSWER})
    asked = store.enter("hello")
    worker.answer()
    assert told(store.read(asked.id)) == []


@pytest.mark.parametrize("stop", [("own fox",), ("fox",), ("x jumps",), (" j", "jum"), ("ox jumps over",)])
def test_a_stop_strings_tokens_are_not_told(store: Store, make_worker: MakeWorker, stop: tuple[str, ...]) -> None:
    worker = make_worker({"fox": "the quick brown fofox jumps"})
    asked = store.enter("fox", stop=stop, logprobs=0)
    worker.answer()
    log = store.read(asked.id)
    assert data_of(log) == text_of(log)[1].encode()


@pytest.mark.parametrize("stop", [(), ("ends.\n\nX",), ("\n\nends",)])
def test_a_lost_attempts_answer_goes_on_with_them(store: Store, make_worker: MakeWorker, stop: tuple[str, ...]) -> None:
    """After any entry of the first attempt."""
    worker = make_worker({"hello": ANSWER}, STREAM_FLUSH_MS=1, backend={"delay_seconds": 0.002})
    asked = store.enter("hello", logprobs=1, stop=stop)
    worker.answer()
    whole = store.read(asked.id)
    assert data_of(whole) == content_bytes(ANSWER)[: -len("\n\nends") if "\n\nends" in stop else None]
    entries = [event for event in whole.events if event.kind is not EventKind.FINISH]
    assert len(entries) > 10
    for num_written in range(1, len(entries), 3):  # the last one and the finish are one write
        store.redis.flushall()
        assert store.room.enter(asked)
        store.write_part(asked.id, entries[:num_written])
        worker.answer()
        log = store.read(asked.id)
        assert text_of(log) == text_of(whole)
        assert [one.data for one in told(log)] == [one.data for one in told(whole)]
        assert store.finish_of(asked.id).reason is FinishReason.STOP


@pytest.mark.parametrize("tags", [TAGS, TEXT_TAGS, None], ids=["tag tokens", "tags as text", "no tags"])
def test_every_character_shown_is_covered_by_a_token_told(tags: ThinkTags | None) -> None:
    """Over random pieces: what is told begins with what is shown, and holds no token that came after it."""
    chance = random.Random(11)
    words = ["a", "b", "aab", "ab", "<", "think>", "</", " </think>", "é", "👩\u200d💻", "\n", "x", "stop", "st"]
    for _ in range(400):
        pieces = {n: chance.choice(words).encode() for n in range(1, 40)}
        for n in range(1, 39):  # some characters are cut in two
            if len(pieces[n]) > 2 and chance.random() < 0.3:
                pieces[n + 1] = pieces[n][2:] + pieces[n + 1]
                pieces[n] = pieces[n][:2]
        pieces |= {257: b"<think>", 258: b"</think>"}
        tokens = [
            257 if tags and chance.random() < 0.05 else 258 if tags and chance.random() < 0.1 else n
            for n in range(1, 40)
        ]
        text = AnswerText(Log("m", ()))
        stop = chance.choice([(), ("aab",), ("stop", "ba")])
        assert text.begin(OutputPipeline(pieces.__getitem__, think_tags=tags, stop=stop))
        text.tell_logprobs(pieces.__getitem__)
        news = []
        for place, token in enumerate(tokens):
            news.append(text.push(token, Logprobs(-float(place), ())))
            if text.stopped:
                break
        news.append(text.flush())
        shown = "".join(delta.text for one in news for delta in one.deltas if delta.kind == "content")
        reported = [logprob for one in news for logprob in one.logprobs]
        assert [token for one in news for token in one.tokens] == text.tokens
        places = [-logprob.logprob for logprob in reported]
        assert places == sorted(set(places)), "in order, once"
        assert all(pieces[tokens[int(place)]] == logprob.data for place, logprob in zip(places, reported, strict=True))
        if tags is None:
            joined = b"".join(logprob.data for logprob in reported).decode(errors="replace")
            assert joined.lstrip("\r\n").startswith(shown.lstrip("\r\n"))
            if reported and text.stopped:
                before_last = b"".join(logprob.data for logprob in reported[:-1]).decode(errors="ignore")
                assert len(before_last.lstrip("\r\n")) <= len(shown.lstrip("\r\n")), "tokens of the stop string"
