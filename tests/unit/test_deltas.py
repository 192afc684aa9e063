"""The whole chain: token ids in, deltas out, the same text however it was continued."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from inference.messages.generation import Delta
from inference.output.deltas import OutputPipeline, merged
from inference.output.thinking import ThinkTags

OPEN_ID, CLOSE_ID = 256, 257
TAGS = ThinkTags("<think>", "</think>", open_id=OPEN_ID, close_id=CLOSE_ID)


def byte_of(token_id: int) -> bytes:
    """A vocabulary of the 256 bytes and two tags."""
    return bytes([token_id]) if token_id < 256 else b""


def pipeline(stop: Sequence[str] = (), *, tags: ThinkTags | None = TAGS, starts_thinking: bool = False):
    return OutputPipeline(byte_of, think_tags=tags, starts_thinking=starts_thinking, stop=stop)


def texts(deltas: Sequence[Delta]) -> tuple[str, str]:
    return (
        "".join(d.text for d in deltas if d.kind == "reasoning"),
        "".join(d.text for d in deltas if d.kind == "content"),
    )


def run(chain: OutputPipeline, ids: Sequence[int]) -> tuple[str, str]:
    deltas = [delta for token_id in ids for delta in chain.push(token_id)]
    return texts(deltas + chain.flush())


def test_reasoning_and_content_are_parted_and_counted() -> None:
    chain = pipeline()
    assert run(chain, [OPEN_ID, *b"\nwhy\n", CLOSE_ID, *b"\n\n", *"é!".encode()]) == ("why", "é!")
    assert chain.num_reasoning_tokens == 7


def test_the_prompt_may_have_opened_the_block() -> None:
    assert run(pipeline(starts_thinking=True), [*b"why", CLOSE_ID, *b"so"]) == ("why", "so")


def test_a_model_without_reasoning_has_content_alone() -> None:
    chain = pipeline(tags=None)
    assert run(chain, list(b"\n<think>x</think>")) == ("", "\n<think>x</think>")
    assert chain.num_reasoning_tokens == 0


def test_stop_strings_end_content_not_reasoning() -> None:
    chain = pipeline(["\n\n"])
    assert run(chain, [OPEN_ID, *b"one\n\ntwo", CLOSE_ID, *b"\n\nfirst\n\nsecond"]) == ("one\n\ntwo", "first")
    assert chain.stopped


def test_held_back_content_does_not_leak_a_tag() -> None:
    """The end tag arrives while a possible stop string is held back."""
    chain = pipeline(["ab!"])
    assert run(chain, [*b"xab", OPEN_ID, *b"hm", CLOSE_ID, *b"y"]) == ("hm", "xaby")


def test_nothing_comes_after_the_stop_string() -> None:
    chain = pipeline(["7"])
    assert texts([d for token_id in b"6 7 8" for d in chain.push(token_id)]) == ("", "6 ")
    assert chain.push(OPEN_ID) == []
    assert chain.flush() == []


def test_half_a_character_before_a_tag_is_replaced() -> None:
    assert run(pipeline(), [OPEN_ID, 0xE2, 0x82, CLOSE_ID, *b"ok"]) == ("\ufffd", "ok")


def test_flush_shows_what_was_held_back() -> None:
    chain = pipeline(["<|im_end|>"])
    assert run(chain, [*b"ends with <|im", 0xE2]) == ("", "ends with <|im\ufffd")
    assert not chain.stopped


def test_tags_as_text_across_tokens() -> None:
    chain = pipeline(tags=ThinkTags("<think>", "</think>"))
    assert run(chain, list(b"<think>why</think>\nso")) == ("why", "so")
    assert chain.num_reasoning_tokens > 0


def test_neighbours_of_one_kind_are_merged() -> None:
    parts = [Delta("content", "a"), Delta("content", ""), Delta("content", "b"), Delta("reasoning", "c")]
    assert merged(parts) == [Delta("content", "ab"), Delta("reasoning", "c")]


ids = st.lists(st.sampled_from([*"ab <\n€".encode(), 0, 0xFF, OPEN_ID, CLOSE_ID]), max_size=30)


@given(ids, st.lists(st.sampled_from(["ab", "b\n", "€", "aab"]), max_size=2), st.booleans(), st.integers(0, 30))
def test_a_continued_answer_reads_as_one(tokens: list[int], stop: list[str], inside: bool, cut: int) -> None:
    """An attempt is lost after `cut` tokens; the next replays them and goes on."""
    whole = run(pipeline(stop, starts_thinking=inside), tokens)
    lost, next_attempt = pipeline(stop, starts_thinking=inside), pipeline(stop, starts_thinking=inside)
    logged = [delta for token_id in tokens[:cut] for delta in lost.push(token_id)]
    replayed = [delta for token_id in tokens[:cut] for delta in next_attempt.push(token_id)]
    assert texts(replayed) == texts(logged)
    rest = [delta for token_id in tokens[cut:] for delta in next_attempt.push(token_id)]
    assert texts(logged + rest + next_attempt.flush()) == whole


@given(ids, st.booleans())
def test_streamed_text_never_changes_afterwards(tokens: list[int], inside: bool) -> None:
    reasoning, content = run(pipeline(starts_thinking=inside), tokens)
    chain, shown = pipeline(starts_thinking=inside), []
    for token_id in tokens:
        shown += chain.push(token_id)
        so_far = texts(shown)
        assert reasoning.startswith(so_far[0])
        assert content.startswith(so_far[1])
