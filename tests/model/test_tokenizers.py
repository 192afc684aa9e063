"""The rebuilt tokenizers against llama.cpp's own, on text that has told implementations apart."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import llama_cpp.llama_cpp as lib
import pytest

from inference import catalog
from inference.bench import shaped_model, shaped_vocabulary
from inference.errors import InvalidRequest, ModelFileError
from inference.llama.loader import LoadedModel
from inference.llama.native_log import quiet
from inference.llama.vocab import PROBE_TEXT, Vocabulary, kit_of
from inference.output.deltas import OutputPipeline
from inference.prompt.byte_level import PRE_TOKENIZERS
from inference.prompt.kit import PromptKit, TokenType
from inference.prompt.tokenizer import Tokenizer
from tests.model.world_texts import SCRIPTS, texts

pytestmark = pytest.mark.model

FAMILIES = ["gpt-2", "smollm", "llama-bpe", "smaug-bpe", "qwen2", "qwen35", "tekken", "gpt-4o", "deepseek-v3",
            "deepseek-coder", "falcon", "minicpm5", "seed-coder"]  # fmt: skip
OTHERS = sorted(PRE_TOKENIZERS.keys() - set(FAMILIES))


def vocabulary_of(model: LoadedModel) -> Vocabulary:
    return Vocabulary(model.backend.model)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Tokenizer, Vocabulary, PromptKit]]:
    """Both tokenizers of a file, without its weights."""
    quiet()
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    assert model
    try:
        kit = kit_of(path, catalog.entry_of_path(path))
        yield Tokenizer(kit), Vocabulary(model), kit
    finally:
        lib.llama_model_free(model)


def without_tags(kit: PromptKit, text: str) -> str:
    """`text` without user-defined tokens' texts: llama.cpp takes them for tokens wherever they stand."""
    tags = [t for t, i in kit.special_ids.items() if kit.token_types[i] == TokenType.USER_DEFINED]
    return re.sub("|".join(map(re.escape, tags)), "(tag)", text) if tags else text


def check(tokenizer: Tokenizer, vocabulary: Vocabulary, kit: PromptKit, wanted: list[str]) -> list[list[int]]:
    """All ids of `wanted`, after they were compared."""
    plain = [without_tags(kit, text) for text in wanted]
    found = tokenizer.encode_batch(plain)
    for text, ids in zip(plain, found, strict=True):
        assert ids == vocabulary.tokenize(text, parse_special=False), repr(text)
    found = [tokenizer.encode_text(t) if t != p else ids for t, p, ids in zip(wanted, plain, found, strict=True)]
    special = set(kit.special_ids.values())
    assert not any(special & set(ids) for ids in found)
    return found


def test_the_corpus_is_large_and_in_many_scripts() -> None:
    corpus = texts()
    assert len(set(corpus)) == len(corpus) >= 10_000
    assert len(SCRIPTS) >= 30
    assert all(sentence in corpus for sentence, _ in SCRIPTS.values())


@pytest.mark.parametrize("name", ["smollm2", "tiny"])
def test_ten_thousand_texts_have_llama_cpps_ids(name: str, request: pytest.FixtureRequest) -> None:
    model: LoadedModel = request.getfixturevalue(name)
    tokenizer = Tokenizer(model.kit)
    corpus = [PROBE_TEXT, "", " ", "a" * 3000, " " * 500 + "x", *texts()]
    found = check(tokenizer, vocabulary_of(model), model.kit, corpus)
    # SmolLM2 has no token for some bytes; llama.cpp leaves them out as well.
    pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    known = set(b"".join(pieces))
    whole = 0
    for text, ids in zip(corpus, found, strict=True):
        data = text.encode()
        if known.issuperset(data):
            assert b"".join(map(pieces.__getitem__, ids)) == data, repr(text)
            whole += 1
    assert whole > 0.9 * len(corpus)


def pieces_file(folder: Path, **changes: object) -> Path:
    vocabulary = shaped_vocabulary.sentencepiece(3072)
    if changes.pop("tangled", False):  # scores in no order and seldom different: places decide
        rng = random.Random(5)
        changes["scores"] = [-float(rng.randrange(12)) for _ in vocabulary.tokens]
    return shaped_model.write(
        folder / "pieces.gguf",
        vocabulary=replace(vocabulary, **changes),
        architecture="llama",
        template=shaped_vocabulary.PIECE_TEMPLATE,
    )


@pytest.mark.parametrize("changes", [{}, {"adds_space": False}, {"tangled": True}], ids=str)
def test_sentencepiece_texts_have_llama_cpps_ids_and_come_back(tmp_path: Path, changes: dict[str, object]) -> None:
    rng = random.Random(11)
    parts = [
        "ab",
        "aba",
        "ana",
        "b",
        "n",
        " ",
        "  ",
        "   ",
        "the",
        " the",
        "--",
        "=",
        "e\u0301",
        "ü",
        "を",
        "\n",
        "\n\n",
    ]
    knotty = ["".join(rng.choices(parts, k=rng.randrange(1, 30))) for _ in range(500)]
    corpus = [PROBE_TEXT, "", "a" * 3000, *knotty, *texts(1500)]
    with opened(pieces_file(tmp_path, **changes)) as (tokenizer, vocabulary, kit):
        for text, ids in zip(corpus, check(tokenizer, vocabulary, kit, corpus), strict=True):
            pipeline = OutputPipeline(tokenizer.token_bytes, drops_space=tokenizer.adds_space([kit.bos_id or 0]))
            deltas = [delta for token in ids for delta in pipeline.push(token)] + pipeline.flush()
            # A text's own U+2581 reads as a space; NUL has no place in an answer. Where a run of blanks is one token,
            # the tokenizer writes a space behind it as well.
            shown = "".join(delta.text for delta in deltas)
            expected = text.replace("\u2581", " ").replace("\0", "")
            if "\n\n" in text or "  " in text:
                shown, expected = shown.replace(" ", ""), expected.replace(" ", "")
            assert shown == expected, repr(text)


def test_sentencepiece_text_within_a_prompt_gets_no_space_of_its_own(tmp_path: Path) -> None:
    with opened(pieces_file(tmp_path)) as (tokenizer, vocabulary, _):
        turn = "<|user|>the lazy dog<|end|>\nthe other"
        assert tokenizer.encode_scaffold(turn) == vocabulary.tokenize(turn, parse_special=True)
        user = tokenizer.id_of("<|user|>")
        assert user is not None
        assert tokenizer.begins_after([user]) and not tokenizer.begins_after([*tokenizer.encode_text("x")])
        said = b"".join(map(tokenizer.token_bytes, tokenizer.encode_text("the dog", begins=False)))
        assert said == b"the dog"
        assert b"".join(map(tokenizer.token_bytes, tokenizer.encode_text("the dog"))) == b" the dog"


def test_of_two_merges_with_one_score_the_left_one_comes_first(tmp_path: Path) -> None:
    """What no order of pairs can say, and so the merge loop is our own."""
    plain = shaped_vocabulary.sentencepiece(3072, adds_space=False)
    keep = {"ab", "ba"}
    scores = [0.0 if token in keep else -1.0 for token in plain.tokens]
    types = [
        TokenType.UNUSED if len(t) > 1 and kind == TokenType.NORMAL and t not in keep else kind
        for t, kind in zip(plain.tokens, plain.types, strict=True)
    ]
    tokens = [f"[{i}]" if kind == TokenType.UNUSED else t for i, (t, kind) in enumerate(zip(plain.tokens, types))]
    path = pieces_file(tmp_path, tokens=tokens, types=types, scores=scores, adds_space=False)
    with opened(path) as (tokenizer, vocabulary, kit):
        for text, expected in {"aba": ["ab", "a"], "bab": ["ba", "b"]}.items():
            ids = tokenizer.encode_text(text)
            assert [kit.tokens[i] for i in ids] == expected
            assert ids == vocabulary.tokenize(text, parse_special=False)


def test_runs_of_blanks_that_are_tokens_stay_so_and_tags_do_not(tmp_path: Path) -> None:
    with opened(pieces_file(tmp_path)) as (tokenizer, vocabulary, kit):
        text = "one\n\n\ntwo  three"
        ids = tokenizer.encode_text(text)
        assert ids == vocabulary.tokenize(text, parse_special=False)
        assert {"\n\n\n", "  "} <= {kit.tokens[i] for i in ids}
        assert "\n\n" not in kit.special_ids
        assert tokenizer.broken(text) == text
        assert tokenizer.id_of("<think>") not in tokenizer.encode_text("a<think>b")


def check_pre_tokenizer(folder: Path, pre: str, num: int) -> None:
    whole = " " + shaped_vocabulary.WHOLE_WORD
    corpus = [PROBE_TEXT, whole, f"a{whole} {whole}s", "a" * 500, " " * 300 + "x", *texts(num)]
    corpus += random.Random(pre).sample(texts(), num)
    path = shaped_model.write(
        folder / "m.gguf", pre=pre, vocabulary=shaped_vocabulary.byte_level_pairs(without_pairs(corpus))
    )
    with opened(path) as (tokenizer, vocabulary, kit):
        check(tokenizer, vocabulary, kit, corpus)


def without_pairs(corpus: list[str]) -> list[str]:
    return [text for text in corpus if shaped_vocabulary.WHOLE_WORD not in text]


@pytest.mark.parametrize("pre", FAMILIES)
def test_every_family_of_pre_tokenizers_cuts_as_llama_cpp_does(tmp_path: Path, pre: str) -> None:
    check_pre_tokenizer(tmp_path, pre, 200)


@pytest.mark.slow
@pytest.mark.parametrize("pre", [*FAMILIES, *OTHERS])
def test_every_pre_tokenizer_cuts_as_llama_cpp_does(tmp_path: Path, pre: str) -> None:
    check_pre_tokenizer(tmp_path, pre, 5000)


def test_scaffold_has_llama_cpps_ids(smollm2: LoadedModel, tiny: LoadedModel) -> None:
    scaffold = (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n<tool_call>{}</tool_call>"
    )
    for model in (smollm2, tiny):
        tokenizer, vocabulary = Tokenizer(model.kit), vocabulary_of(model)
        for text in [scaffold, *(t for t in texts(1000) if "<" in t and "\ufdd2" not in t)]:
            assert tokenizer.encode_scaffold(text) == vocabulary.tokenize(text, parse_special=True), repr(text)


def test_user_defined_tags_in_text_stay_text_though_llama_cpp_would_match_them(tiny: LoadedModel) -> None:
    tokenizer, vocabulary = Tokenizer(tiny.kit), vocabulary_of(tiny)
    tag = tokenizer.id_of("<think>")
    assert tag is not None
    assert vocabulary.tokenize("a<think>b", parse_special=False).count(tag) == 1
    assert tag not in tokenizer.encode_text("a<think>b")


def test_token_bytes_are_llama_cpps_pieces(smollm2: LoadedModel, tiny: LoadedModel, tmp_path: Path) -> None:
    for model in (smollm2, tiny):
        tokenizer, vocabulary = Tokenizer(model.kit), vocabulary_of(model)
        for token in range(0, vocabulary.num_tokens, 7):
            if model.kit.token_types[token] == TokenType.NORMAL:
                assert tokenizer.token_bytes(token) == vocabulary.piece(token), token
        assert all(tokenizer.token_bytes(t) == b"" for t in model.end_tokens)
    with opened(pieces_file(tmp_path)) as (tokenizer, vocabulary, kit):
        for token, kind in enumerate(kit.token_types):
            hidden = kind in (TokenType.CONTROL, TokenType.UNKNOWN)
            assert tokenizer.token_bytes(token) == (b"" if hidden else vocabulary.piece(token)), kit.tokens[token]


def test_thinking_tags_are_seen_in_the_output(tiny: LoadedModel) -> None:
    tokenizer = Tokenizer(tiny.kit)
    tag = tokenizer.id_of("</think>")
    assert tag is not None
    assert tokenizer.token_bytes(tag) == b"</think>"


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    entry = catalog.entry_of_path(shaped_model.write(tmp_path / "m.gguf", pre="kimi-k2"))
    with pytest.raises(ModelFileError, match="kimi-k2"):
        kit_of(catalog.resolve(entry), entry)


def test_a_vocabulary_that_cannot_spell_every_byte_is_refused(tmp_path: Path) -> None:
    tokens = [f"({t})" if t == "<0xE2>" else t for t in shaped_vocabulary.sentencepiece(3072).tokens]
    path = pieces_file(tmp_path, tokens=tokens)
    with pytest.raises(ModelFileError, match="<0xE2>"):
        Tokenizer(kit_of(path, catalog.entry_of_path(path)))


def test_a_kit_whose_scores_were_cut_is_refused(tmp_path: Path) -> None:
    path = pieces_file(tmp_path)
    kit = kit_of(path, catalog.entry_of_path(path))
    assert PromptKit.from_bytes(kit.to_bytes()) == kit
    cut = PromptKit(**{f: getattr(kit, f) for f in kit.__struct_fields__} | {"scores": kit.scores[:-4]})
    with pytest.raises(InvalidRequest, match="scores"):
        PromptKit.from_bytes(cut.to_bytes())
