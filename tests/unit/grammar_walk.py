"""Walks through the masks of a grammar: a small kit of prompts, and a writer that takes any token it may."""

from __future__ import annotations

import random

import numpy as np
import pytest

from inference.grammar.matcher import Grammars, JsonConstraint
from inference.prompt.kit import PromptKit, TokenType
from inference.prompt.tokenizer import Tokenizer


def small_kit() -> PromptKit:
    """Every byte, some longer tokens (two of them with the same bytes as what JSON needs), and special ones."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    bytes_ = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    longer = ['{"', '":', '"}', '","', "}}", "street", "ĊĠĠĠĠ", "ĠĠ", "12", "true", "null", "Ã©", "ðŁ", "]}"]
    special = ["<|im_start|>", "<|im_end|>", '{"', '"', "<think>", "[PAD]"]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED] * 2 + [TokenType.UNUSED]
    tokens = (*bytes_, *longer, *special)
    end = tokens.index("<|im_end|>")
    return PromptKit(
        model="small",
        pre_tokenizer="gpt-2",
        tokens=tokens,
        token_types=bytes([TokenType.NORMAL] * (len(bytes_) + len(longer)) + kinds),
        merges=(),
        chat_template="",
        context_tokens=100,
        end_tokens=(end,),
    )


def spelled(kit: PromptKit, text: str) -> list[int]:
    """Byte by byte: the kit's special token that looks like a quote keeps its tokenizer from writing one."""
    tokenizer = Tokenizer(kit)
    ids = {tokenizer.token_bytes(token): token for token in range(255, -1, -1)}
    return [ids[bytes([byte])] for byte in text.encode()]


class Walk:
    """Draws tokens that a constraint allows, ever more often those that end something."""

    def __init__(self, kit: PromptKit, seed: int) -> None:
        self.kit = kit
        self.tokenizer = Tokenizer(kit)
        self.random = random.Random(seed)

    def allowed(self, constraint: JsonConstraint) -> list[int]:
        bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
        return [int(i) for i in np.flatnonzero(bits)]

    def answer(self, constraint: JsonConstraint, *, patience: int = 30) -> list[int]:
        tokens: list[int] = []
        while not constraint.is_complete:
            allowed = self.allowed(constraint)
            assert allowed, "a dead end"
            ends = [token for token in allowed if token in self.kit.end_tokens]
            if ends and self.random.random() < 0.3:
                return tokens
            choices = [token for token in allowed if token not in self.kit.end_tokens]
            if len(tokens) > patience:  # come to an end
                closing = [t for t in choices if set(self.tokenizer.token_bytes(t)) <= set(b'"]}0')]
                choices = closing or choices
            token = self.random.choice(choices)
            constraint.accept(token)
            tokens.append(token)
            assert len(tokens) < 3_000
        return tokens

    def text(self, tokens: list[int]) -> str:
        return b"".join(map(self.tokenizer.token_bytes, tokens)).decode()


@pytest.fixture(scope="module")
def kit() -> PromptKit:
    return small_kit()


@pytest.fixture(scope="module")
def grammars(kit: PromptKit) -> Grammars:
    return Grammars.of(kit)
