"""The prompt kit: all that turns messages into token ids, as plain values that can travel.

Owns the fields and their compact bytes. A worker makes one from its model file and advertises it, so that web nodes
count tokens exactly without holding a model. Knows no template engine, no tokenizer library, no model file.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from functools import cached_property

import msgspec

from inference.errors import InvalidRequest
from inference.messages.generation import SamplingParams

KIT_VERSION = 2
MAX_KIT_BYTES = 256 * 2**20  # unpacked; SmolLM3's kit has 8 MB


class TokenType(IntEnum):
    """As GGUF numbers them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Types that only a template may produce: no text of a user or a document ever becomes one of these.
SPECIAL_TYPES = frozenset({TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED})


# Kinds of tokenizer, as GGUF names them in tokenizer.ggml.model.
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"


class ThinkTags(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What opens and closes the model's thoughts in its output."""

    open: str
    close: str


class PromptKit(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """`tokens` are in the byte-level alphabet of GPT-2, or with U+2581 for a space where `tokenizer` is SENTENCEPIECE
    (special ones in plain text); `token_types` one byte each.

    `merges` are `left right`, best first. `scores` are float32, in this machine's order, one for each token of a
    SENTENCEPIECE vocabulary; `adds_space` says that it writes a space before what begins. `bos_id`/`eos_id` are None
    where the model has none. `end_tokens` end an answer. `context_tokens` is what one conversation may fill, reply
    included.
    """

    model: str
    pre_tokenizer: str
    tokens: tuple[str, ...]
    token_types: bytes
    merges: tuple[str, ...]
    tokenizer: str = BYTE_LEVEL
    scores: bytes = b""
    adds_space: bool = False
    chat_template: str
    context_tokens: int
    bos_id: int | None = None
    eos_id: int | None = None
    add_bos: bool = False
    end_tokens: tuple[int, ...] = ()
    thinking: ThinkTags | None = None
    tools: str = ""
    sampling: SamplingParams = SamplingParams()
    version: int = KIT_VERSION

    def to_bytes(self) -> bytes:
        return zlib.compress(msgspec.msgpack.encode(self), 6)

    @classmethod
    def from_bytes(cls, data: bytes) -> PromptKit:
        """Raises InvalidRequest: not a kit, or one of another version."""
        inflate = zlib.decompressobj()
        try:
            plain = inflate.decompress(data, MAX_KIT_BYTES)
            kit = _decoder.decode(plain)
        except (zlib.error, msgspec.DecodeError) as error:
            raise InvalidRequest(f"not a prompt kit: {error}") from error
        if kit.version != KIT_VERSION or len(kit.tokens) != len(kit.token_types):
            raise InvalidRequest(f"a prompt kit of version {kit.version}; this reader knows {KIT_VERSION}.")
        if kit.tokenizer == SENTENCEPIECE and len(kit.scores) != 4 * len(kit.tokens):
            raise InvalidRequest(f"a prompt kit with {len(kit.scores)} bytes of scores for {len(kit.tokens)} tokens.")
        return kit

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Text -> id of every token that only a template may produce."""
        blank = self.blank_ids
        return {
            self.tokens[i]: i
            for i, kind in enumerate(self.token_types)
            if kind in SPECIAL_TYPES and self.tokens[i] not in blank
        }

    @cached_property
    def blank_ids(self) -> dict[str, int]:
        """Text -> id of the user-defined tokens that are mere white space: runs of line ends and spaces."""
        return {
            self.tokens[i]: i
            for i, kind in enumerate(self.token_types)
            if kind == TokenType.USER_DEFINED and self.tokens[i].replace("\u2581", " ").isspace()
        }

    @property
    def bos_text(self) -> str:
        return "" if self.bos_id is None else self.tokens[self.bos_id]

    @property
    def eos_text(self) -> str:
        return "" if self.eos_id is None else self.tokens[self.eos_id]


_decoder = msgspec.msgpack.Decoder(PromptKit)  # made at import, by one thread: see inference.messages.serialization
