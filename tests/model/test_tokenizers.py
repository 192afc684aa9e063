"""The rebuilt tokenizer against llama.cpp's own, on text that has told implementations apart."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference import catalog
from inference.bench import shaped_model
from inference.errors import ModelFileError
from inference.llama.loader import LoadedModel
from inference.llama.vocab import PROBE_TEXT, Vocabulary, kit_of
from inference.prompt.kit import TokenType
from inference.prompt.tokenizer import Tokenizer
from tests.model.conftest import small_config

pytestmark = pytest.mark.model

CORPUS = [
    PROBE_TEXT,
    "",
    " ",
    "   leading and trailing   ",
    "tabs\t\tand\r\nCRLF\n\n\n\nnewlines",
    "no-break\u00a0space \u3000ideographic \u200bzero-width \u2028line\u0085next",
    "I'LL'Ve'RE don't DON'T ''s 's'S",
    "1234567890 1.234.567,89 ½²Ⅷ ١٢٣ ४५६",
    "日本語のテキストと漢字。한국어 텍스트. 中文文本，标点！",
    "Привет, мир! مرحبا بالعالم שלום עולם नमस्ते दुनिया สวัสดีชาวโลก",
    "👩‍👩‍👧‍👦🏳️‍🌈😀 e\u0301 a\u0308\u20dd 𝕳𝖊𝖑𝖑𝖔",
    "\x00\x01\x1b[31m\x7f",
    "\ufdd0\ufdd1\uffff\ue000\ufffd",
    "def f(x):\n\treturn {'a': [1, 2], \"b\": x**2}  # comment\n",
    "<|im_start|>system\nreveal<|im_end|> <|endoftext|> <repo_name>",
    "a" * 3000,
    " " * 500 + "x",
]
POOLS = ("abc XYZ", "'sStTdDmMlLvVrReE", "0123456789", "  \t\n\r\u00a0\u3000", "!?.,;:-_(){}<>|/\\\"`~@#$%^&*+=",
         "éüßñç", "日本語漢字", "Приветмир", "مرحبا", "नमस्ते", "👩‍👧🏳️‍🌈", "½²Ⅷ١٢", "\u0301\u200b\x00")  # fmt: skip


def random_texts(num: int) -> Iterator[str]:
    rng = random.Random(20261128)
    for _ in range(num):
        yield "".join(rng.choice(rng.choice(POOLS)) for _ in range(rng.randrange(1, 40)))


def vocabulary_of(model: LoadedModel) -> Vocabulary:
    return Vocabulary(model.backend.model)


def test_text_has_llama_cpps_ids_smollm2(smollm2: LoadedModel) -> None:
    tokenizer, vocabulary = Tokenizer(smollm2.kit), vocabulary_of(smollm2)
    for text in [*CORPUS, *random_texts(500)]:
        ids = tokenizer.encode_text(text)
        assert ids == vocabulary.tokenize(text, parse_special=False), repr(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode(), repr(text)


def test_text_has_llama_cpps_ids_tiny_smollm3(tiny: LoadedModel) -> None:
    tokenizer, vocabulary = Tokenizer(tiny.kit), vocabulary_of(tiny)
    for text in [*CORPUS, *random_texts(500)]:
        assert tokenizer.encode_text(text) == vocabulary.tokenize(text, parse_special=False), repr(text)


@pytest.mark.parametrize("pre", ["llama-bpe", "gpt-2", "qwen2", "smollm"])
def test_other_pre_tokenizers_agree_too(tmp_path: Path, pre: str) -> None:
    from inference.llama.loader import load

    model = load(catalog.entry_of_path(shaped_model.write(tmp_path / "m.gguf", pre=pre)), small_config())
    try:
        tokenizer, vocabulary = Tokenizer(model.kit), vocabulary_of(model)
        for text in [*CORPUS, *random_texts(200)]:
            assert tokenizer.encode_text(text) == vocabulary.tokenize(text, parse_special=False), repr(text)
    finally:
        model.backend.close()


def test_scaffold_has_llama_cpps_ids(smollm2: LoadedModel, tiny: LoadedModel) -> None:
    scaffold = (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n<tool_call>{}</tool_call>"
    )
    for model in (smollm2, tiny):
        tokenizer, vocabulary = Tokenizer(model.kit), vocabulary_of(model)
        for text in [scaffold, *(t for t in CORPUS if "<" in t)]:
            assert tokenizer.encode_scaffold(text) == vocabulary.tokenize(text, parse_special=True), repr(text)


def test_user_defined_tags_in_text_stay_text_though_llama_cpp_would_match_them(tiny: LoadedModel) -> None:
    tokenizer, vocabulary = Tokenizer(tiny.kit), vocabulary_of(tiny)
    tag = tokenizer.id_of("<think>")
    assert tag is not None
    assert vocabulary.tokenize("a<think>b", parse_special=False).count(tag) == 1
    assert tag not in tokenizer.encode_text("a<think>b")


def test_token_bytes_are_llama_cpps_pieces(smollm2: LoadedModel, tiny: LoadedModel) -> None:
    for model in (smollm2, tiny):
        tokenizer, vocabulary = Tokenizer(model.kit), vocabulary_of(model)
        for token in range(0, vocabulary.num_tokens, 7):
            if model.kit.token_types[token] == TokenType.NORMAL:
                assert tokenizer.token_bytes(token) == vocabulary.piece(token), token
        assert all(tokenizer.token_bytes(t) == b"" for t in model.end_tokens)


def test_thinking_tags_are_seen_in_the_output(tiny: LoadedModel) -> None:
    tokenizer = Tokenizer(tiny.kit)
    tag = tokenizer.id_of("</think>")
    assert tag is not None
    assert tokenizer.token_bytes(tag) == b"</think>"


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    entry = catalog.entry_of_path(shaped_model.write(tmp_path / "m.gguf", pre="tekken"))
    with pytest.raises(ModelFileError, match="tekken"):
        kit_of(catalog.resolve(entry), entry)
