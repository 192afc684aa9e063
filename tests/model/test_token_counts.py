"""What a web node counts with an advertised kit is what the worker's model reads; and whose template that is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import Queue
from uuid import UUID

import numpy as np
import pytest

from inference import catalog, inspect
from inference.bench import shaped_model, shaped_vocabulary
from inference.catalog import Catalog
from inference.engine.engine import Ended, Engine, Output, Submission, Token
from inference.engine.sampling.plan import SamplerPlan
from inference.errors import ConfigError
from inference.llama.loader import LoadedModel, load
from inference.llama.vocab import kit_of
from inference.messages.generation import ChatMessage, GenerationRequest, Role, SamplingParams, ToolCall, ToolSpec
from inference.output.deltas import OutputPipeline
from inference.prompt.builder import PromptBuilder
from inference.prompt.kit import PromptKit
from tests.model.conftest import small_config
from tests.model.world_texts import texts

pytestmark = pytest.mark.model

TOOLS = (
    ToolSpec(name="weather", description="Weather of a place — 天気", parameters='{"type": "object"}'),
    ToolSpec(name="add", description="Adds <tool_call> two numbers"),
)


@pytest.fixture(scope="module")
def pieces_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of another family: a SentencePiece vocabulary, and a template of its own."""
    return shaped_model.write(
        tmp_path_factory.mktemp("pieces") / "pieces.gguf",
        vocabulary=shaped_vocabulary.sentencepiece(3072),
        architecture="llama",
        template=shaped_vocabulary.PIECE_TEMPLATE,
    )


@pytest.fixture(scope="module")
def pieces(pieces_path: Path) -> Iterator[LoadedModel]:
    model = load(catalog.entry_of_path(pieces_path), small_config())
    yield model
    model.backend.close()


def requests(num: int) -> Iterator[GenerationRequest]:
    """Conversations out of the corpus: with and without system prompt, tools, calls, thoughts; short and too long."""
    rng, corpus = random.Random(4), [text for text in texts() if text.strip()]
    for number in range(num):
        messages = []
        if rng.random() < 0.6:
            flag = rng.choice(("", "", " /no_think", " /think", " /system_override"))
            messages.append(ChatMessage(role=Role.SYSTEM, content=rng.choice(corpus) + flag))
        tools = TOOLS if rng.random() < 0.4 and "/system_override" not in "".join(m.content for m in messages) else ()
        for turn in range(rng.randrange(rng.choice((2, 2, 2, 14)))):
            messages.append(ChatMessage(role=Role.USER, content=rng.choice(corpus)))
            if tools and rng.random() < 0.5:
                call = ToolCall(id=f"c{turn}", name="weather", arguments=json.dumps({"place": rng.choice(corpus)}))
                messages.append(ChatMessage(role=Role.ASSISTANT, content="", tool_calls=(call,)))
                messages.append(ChatMessage(role=Role.TOOL, content=rng.choice(corpus), tool_call_id=call.id))
            messages.append(ChatMessage(role=Role.ASSISTANT, content=rng.choice(corpus)))
        messages.append(ChatMessage(role=Role.USER, content=rng.choice(corpus)))
        yield GenerationRequest(
            id=UUID(int=number),
            model="m",
            user_key="u",
            messages=tuple(messages),
            thinking=rng.choice((None, True, False)),
            tools=tools,
            tool_dialect=rng.choice(("", "xml", "python")),
            is_system_shared=rng.random() < 0.5,
            sampling=SamplingParams(max_tokens=rng.choice((None, 16, 200))),
            date="2026-11-28",
        )


@pytest.mark.parametrize(("name", "num"), [("tiny", 300), ("smollm2", 100), ("pieces", 150)])
def test_a_web_node_counts_exactly_what_the_worker_reads(name: str, num: int, request: pytest.FixtureRequest) -> None:
    model: LoadedModel = request.getfixturevalue(name)
    kit = with_context(model.kit, 2048)
    worker, web = PromptBuilder(kit), PromptBuilder(PromptKit.from_bytes(kit.to_bytes()))
    are_cut, have_tools = set(), set()
    for asked in requests(num):
        prompt = worker.build(asked)
        assert web.count(asked) == len(prompt.tokens)
        are_cut.add(prompt.num_dropped_messages > 0)
        have_tools.add(bool(asked.tools))
    assert are_cut == have_tools == {True, False}


def with_context(kit: PromptKit, context_tokens: int) -> PromptKit:
    fields = {name: getattr(kit, name) for name in kit.__struct_fields__}
    return PromptKit(**fields | {"context_tokens": context_tokens})


def test_a_sentencepiece_model_answers_through_its_own_template(pieces_path: Path) -> None:
    pieces = load(catalog.entry_of_path(pieces_path), small_config())  # the engine closes it
    assert not any("tokenizer" in note for note in (*pieces.notes, *pieces.degradations))
    builder = PromptBuilder(pieces.kit)
    asked = next(requests(1))
    asked = GenerationRequest(
        id=asked.id, model="m", user_key="u", messages=(ChatMessage(role=Role.USER, content="the lazy dog <|end|>"),)
    )
    prompt = builder.build(asked)
    names = [pieces.kit.tokens[token] for token in prompt.tokens]
    assert names[:2] == ["<s>", "<|user|>"]
    assert names[-1] == "<|assistant|>"
    assert names.count("<|end|>") == 1
    assert prompt.adds_space
    outputs: Queue[Output] = Queue()
    engine = Engine(pieces.backend, end_tokens=pieces.end_tokens, target_itl_ms=100.0)
    engine.start()
    try:
        engine.submit(
            Submission(
                key=asked.id,
                prompt=prompt.tokens,
                generated=np.empty(0, np.int32),
                plan=SamplerPlan(temperature=0.0),
                max_tokens=12,
                salt="",
                priority=0,
                sink=outputs.put,
            )
        )
        pipeline = OutputPipeline(builder.tokenizer.token_bytes, drops_space=prompt.adds_space)
        tokens, deltas = [], []
        while not isinstance(output := outputs.get(timeout=30), Ended):
            if isinstance(output, Token):
                tokens.append(output.id)
                deltas += pipeline.push(output.id)
    finally:
        engine.stop(timeout=30)
    text = "".join(delta.text for delta in [*deltas, *pipeline.flush()])
    whole = b"".join(map(builder.tokenizer.token_bytes, tokens)).removeprefix(b" ").decode("utf-8", "replace")
    assert tokens
    assert text == whole.replace("\0", "")


def entry_file(folder: Path, path: Path, template: str, tools: str = "python") -> Path:
    file = folder / "own.toml"
    file.write_text(
        f'[models.own]\ntitle = "Own"\nsource = {{ path = "{path}" }}\ncontext_tokens = 512\n'
        f'tools = "{tools}"\ntemplate = "{template}"\n'
    )
    return file


def test_the_template_inside_the_file_can_be_chosen(tmp_path: Path, tiny_path: Path) -> None:
    entry = Catalog(str(entry_file(tmp_path, tiny_path, "gguf"))).entry("own")
    kit = kit_of(tiny_path, entry)
    assert kit.chat_template == shaped_model.TEMPLATE
    assert kit.tools == "python"
    builder = PromptBuilder(kit)
    assert not builder.template.is_own
    ours = PromptBuilder(kit_of(tiny_path, replace(entry, template="smollm3.jinja")))
    assert ours.template.is_own
    asked = next(requests(1))
    assert builder.count(asked) != ours.count(asked)


def test_an_unknown_template_or_dialect_is_named(tmp_path: Path, tiny_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"template must be gguf or one of .*smollm3\.jinja, not 'nowhere\.jinja'"):
        Catalog(str(entry_file(tmp_path, tiny_path, "nowhere.jinja")))
    with pytest.raises(ConfigError, match="tools must be hermes, python or empty, not 'perl'"):
        Catalog(str(entry_file(tmp_path, tiny_path, "gguf", tools="perl")))


@pytest.mark.parametrize(
    ("template", "said"), [("gguf", "the file's is used"), ("smollm3.jinja", "smollm3.jinja is used")]
)
def test_inspect_says_which_template_is_used(
    tmp_path: Path,
    tiny_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    template: str,
    said: str,
) -> None:
    monkeypatch.setenv("MODELS_FILE", str(entry_file(tmp_path, tiny_path, template)))
    assert inspect.main(["own"]) == 0
    assert said in capsys.readouterr().out
    assert inspect.main(["own", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["template_used"] == template
