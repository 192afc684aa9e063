"""Answers held to a JSON schema, token by token: `engine.constraint.Constraint` over one model's vocabulary.

Owns the vocabulary as the grammar library wants it and the state of one constrained answer. Knows no engine and no
logits. `Grammars` lives once per process and may be called from any thread; a `JsonConstraint` is made in the thread of
one generation, then belongs to the engine's.

A special token (control, user-defined, unknown) never stands inside JSON, whatever its text: only the tokens that end
an answer can come, and only where the answer may end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import structlog
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from inference.engine.constraint import TokenMask
from inference.errors import EngineError, InferenceError, InvalidRequest
from inference.grammar import json_schema, tool_grammar
from inference.grammar.begun_calls import CallsOnceBegun
from inference.grammar.schema_limits import PARAM
from inference.messages.generation import GenerationRequest
from inference.prompt.kit import PromptKit
from inference.prompt.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

_SPECIAL_MARK = b"\xff"  # begins what no text can hold, so the grammar library takes such a token for a special one


class Grammars:
    """Makes the constraints of one model."""

    def __init__(self, kit: PromptKit, tokenizer: Tokenizer | None = None) -> None:
        """Cheap: the vocabulary is prepared when the first constraint is made (0.3 s for 49,152 tokens, once)."""
        self._kit = kit
        self._tokenizer = tokenizer
        self._prepared: LLTokenizer | None = None
        self._preparing = threading.Lock()

    @classmethod
    def of(cls, kit: PromptKit) -> Grammars:
        return cls(kit)

    def constraint(
        self, schema: str, generated: Sequence[int] = (), *, follows: str = "", may_break: bool = False
    ) -> JsonConstraint:
        """What holds an answer to `schema` (JSON text) that begins with the tokens `generated`.

        `follows` is text that stands before the answer: where the schema's JSON can begin so, the answer goes on in it,
        else it begins afresh. `may_break`: the line ends that models put behind a thought may come first.

        Raises:
            InvalidRequest: the schema cannot be followed, or `generated` does not follow it.
        """
        vocabulary = self._vocabulary()
        matcher = json_schema.compiled(schema, vocabulary, may_break=may_break)
        if follows:
            begun = vocabulary.tokenize_bytes(follows.encode())
            if matcher.try_consume_tokens(begun) != len(begun) or matcher.is_error() or matcher.is_stopped():
                matcher = json_schema.compiled(schema, vocabulary, may_break=True)
        tokens = [int(token) for token in generated]
        if matcher.try_consume_tokens(tokens) != len(tokens):
            raise InvalidRequest("The answer written so far does not follow the schema.", param=PARAM)
        return JsonConstraint(matcher, len(self._kit.tokens))

    def tool_calls(self, request: GenerationRequest) -> JsonConstraint:
        """What holds an answer to the calls that `request` asks for. Raises InvalidRequest: it cannot be held."""
        matcher = tool_grammar.compiled(request, self._vocabulary(), self._tags(request))
        return JsonConstraint(matcher, len(self._kit.tokens))

    def begun_calls(self, request: GenerationRequest) -> CallsOnceBegun | None:
        """What holds the calls of a free answer to their schemas, each from its tag on; None for a model whose tags are
        no tokens: where a call begins is then not known in time. Raises as `tool_calls`."""
        ids = self._kit.special_ids
        opener, closer = ids.get(tool_grammar.OPEN), ids.get(tool_grammar.CLOSE)
        if opener is None or closer is None:
            return None
        matcher = tool_grammar.compiled_rest(request, self._vocabulary(), self._tags(request))
        return CallsOnceBegun(opener, JsonConstraint(matcher, len(self._kit.tokens)), len(self._kit.tokens))

    def _tags(self, request: GenerationRequest) -> tool_grammar.Tags:
        opener, closer = tool_grammar.tags_of(request)
        ids = self._kit.special_ids
        return tool_grammar.Tags.of(ids.get(opener), ids.get(closer), (opener, closer))

    def _vocabulary(self) -> LLTokenizer:
        with self._preparing:
            if self._prepared is None:
                self._prepared = _vocabulary(self._kit, self._tokenizer or Tokenizer(self._kit))
                self._tokenizer = None
            return self._prepared


class JsonConstraint:
    """One answer. The mask is made when a token is accepted, so `mask` is free and never fails."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        """Raises as `accept`."""
        self._matcher = matcher
        self._mask: TokenMask = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._look()

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    @property
    def is_open(self) -> bool:
        return False

    def restart(self) -> None:
        """Stand at the beginning again. Raises as `accept`."""
        self._matcher.reset()
        self._look()

    def mask(self) -> TokenMask:
        return self._mask

    def accept(self, token: int) -> None:
        """Takes 20 us, 5 ms at the very most.

        Raises:
            InvalidRequest: what the schema asks for here is beyond the limits, or nothing satisfies it.
            EngineError: the mask did not allow `token`.
        """
        if not self._mask[token >> 5] >> (token & 31) & 1:
            raise EngineError(f"Token {token} came where the schema does not allow it.", token=token)
        self._matcher.consume_token(token)
        self._look()

    def _look(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            self._mask[:] = 0
            raise _fault(self._matcher.get_error())
        self._is_complete: bool = self._matcher.is_stopped()


def _fault(report: str) -> InferenceError:
    log.warning("constraint_failed", reason=json_schema.reason(report))
    if "panic" in report.lower():
        return EngineError("The answer could not be held to its schema.")
    return InvalidRequest(json_schema.reason(report), param=PARAM)


class _Vocabulary:
    """The shape in which the grammar library takes a tokenizer; it reads these names."""

    def __init__(self, kit: PromptKit, tokenizer: Tokenizer) -> None:
        special = set(kit.special_ids.values()) | set(kit.end_tokens)
        self.tokens = [
            _SPECIAL_MARK + text.encode() if token in special else tokenizer.token_bytes(token)
            for token, text in enumerate(kit.tokens)
        ]
        self.special_token_ids = sorted(special)
        self.eos_token_id = kit.end_tokens[0]
        self.bos_token_id = kit.bos_id
        self._encode = tokenizer.encode_text

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode(errors="replace"))


def _vocabulary(kit: PromptKit, tokenizer: Tokenizer) -> LLTokenizer:
    return LLTokenizer(
        TokenizerWrapper(_Vocabulary(kit, tokenizer)),
        n_vocab=len(kit.tokens),
        eos_token=list(kit.end_tokens),
        slices=LLTokenizer.json_slices(),
    )
