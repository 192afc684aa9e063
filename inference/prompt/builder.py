"""A request -> the token ids its answer begins from. Puts template, tokenizer and context window together.

Called by a worker for every generation and by web nodes to count; thread-safe, one instance per kit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.prompt import context_window
from inference.prompt import messages as message_rules
from inference.prompt.chat_template import ChatTemplate
from inference.prompt.kit import PromptKit
from inference.prompt.tokenizer import Tokenizer
from inference.prompt.tool_texts import Dialect
from inference.protocol import ChatMessage, GenerationRequest


@dataclass(frozen=True)
class Prompt:
    """`starts_thinking`: the prompt ends inside an open thought, so the answer's first tokens belong to it.

    The first `num_shared` tokens hold no person's text: the template's, and a system message that the request says is
    the site's own. Their KV may serve everybody.
    """

    tokens: npt.NDArray[np.int32]
    starts_thinking: bool
    num_dropped_messages: int = 0
    num_shared: int = 0


@dataclass(frozen=True)
class _Rendered:
    tokens: list[int]
    ends_thinking_open: bool
    num_shared: int


class PromptBuilder:
    def __init__(self, kit: PromptKit, tokenizer: Tokenizer | None = None) -> None:
        """Raises ModelFileError: the kit's tokenizer or template cannot be used."""
        self.kit = kit
        self.tokenizer = tokenizer or Tokenizer(kit)
        self.template = ChatTemplate(kit, self.tokenizer.broken)

    def build(self, request: GenerationRequest) -> Prompt:
        """Raises InvalidRequest: messages or tools are not sound. PromptTooLong: not even the newest turn fits."""
        message_rules.check_tools(request)
        rendered: dict[int, _Rendered] = {}
        texts: dict[str, list[int]] = {}

        def count(messages: Sequence[ChatMessage]) -> int:
            key = len(messages)  # candidates differ in how much was dropped, so their length names them
            if key not in rendered:
                rendered[key] = self._render(request, messages, texts)
            return len(rendered[key].tokens)

        fitted = context_window.fit(
            request.messages,
            count=count,
            context_tokens=self.kit.context_tokens,
            max_tokens=request.sampling.max_tokens,
        )
        chosen = rendered[len(fitted.messages)]
        tokens = np.array(chosen.tokens, np.int32)
        return Prompt(tokens, chosen.ends_thinking_open, fitted.num_dropped, chosen.num_shared)

    def count(self, request: GenerationRequest) -> int:
        """Tokens of the prompt that `build` would make; raises as it does."""
        return len(self.build(request).tokens)

    def dialect_of(self, request: GenerationRequest) -> Dialect:
        """How calls are written: as the request says, else as the model learnt it."""
        return request.tool_dialect or ("python" if self.kit.tools == "python" else "xml")

    def _render(
        self, request: GenerationRequest, messages: Sequence[ChatMessage], texts: dict[str, list[int]]
    ) -> _Rendered:
        segments = self.template.render(
            messages,
            thinking=request.thinking,
            date=request.date,
            tools=request.tools if request.may_call else (),
            dialect=self.dialect_of(request),
        )
        tokens: list[int] = []
        num_shared: int | None = None  # not known before some person's text comes
        for segment in segments:
            if num_shared is None and not (segment.is_scaffold or (segment.is_system and request.is_system_shared)):
                num_shared = len(tokens)
            if segment.is_scaffold:
                tokens += self.tokenizer.encode_scaffold(segment.text)
            else:
                if segment.text not in texts:  # a long history is rendered several times while it is cut
                    texts[segment.text] = self.tokenizer.encode_text(segment.text)
                tokens += texts[segment.text]
        bos = self.kit.bos_id
        if self.kit.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
            num_shared = num_shared + 1 if num_shared else num_shared
        tail = segments[-1].text.rstrip() if segments and segments[-1].is_scaffold else ""
        tags = self.kit.thinking
        # Where no message could be told from the template's text (its marks were lost), nothing is known to be shared;
        # nor where tools and calls may stand in it unmarked.
        if not self.template.is_own and (request.tools or any(message.tool_calls for message in messages)):
            num_shared = 0
        return _Rendered(tokens, tags is not None and tail.endswith(tags.open), num_shared or 0)
