"""A request -> the token ids its answer begins from. Puts template, tokenizer and context window together.

Called by a worker for every generation and by web nodes to count; thread-safe, one instance per kit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from inference.messages.generation import ChatMessage, GenerationRequest, Role
from inference.prompt import context_window, placing
from inference.prompt import messages as message_rules
from inference.prompt.chat_template import ChatTemplate, Segment
from inference.prompt.kit import PromptKit
from inference.prompt.tokenizer import Tokenizer
from inference.prompt.tool_texts import Dialect


@dataclass(frozen=True)
class Prompt:
    """`starts_thinking`: the prompt ends inside an open thought, so the answer's first tokens belong to it.

    The first `num_shared` tokens hold no person's text: the template's, and a system message that the request says is
    the site's own. Their KV may serve everybody. `adds_space`: a space that the answer begins with is the tokenizer's
    and none of the answer. `given` is the text that the answer goes on from: its tokens, `num_given`, are the last.
    """

    tokens: npt.NDArray[np.int32]
    starts_thinking: bool
    num_dropped_messages: int = 0
    num_shared: int = 0
    adds_space: bool = False
    given: str = ""
    num_given: int = 0


@dataclass(frozen=True)
class _Rendered:
    tokens: list[int]
    ends_thinking_open: bool
    num_shared: int
    num_given: int


_Texts = dict[tuple[str, bool], list[int]]  # ids of people's texts, by text and whether it begins


class PromptBuilder:
    def __init__(self, kit: PromptKit, tokenizer: Tokenizer | None = None) -> None:
        """Raises ModelFileError: the kit's tokenizer or template cannot be used."""
        self.kit = kit
        self.tokenizer = tokenizer or Tokenizer(kit)
        self.template = ChatTemplate(kit, self.tokenizer.broken)

    def build(self, request: GenerationRequest) -> Prompt:
        """Raises InvalidRequest: messages or tools are not sound. PromptTooLong: not even the newest turn fits."""
        message_rules.check(request.messages)
        message_rules.check_tools(request)
        rendered: dict[int, _Rendered] = {}
        texts: _Texts = {}

        def count(messages: Sequence[ChatMessage]) -> int:
            key = len(messages)  # candidates differ in how much was dropped, so their length names them
            if key not in rendered:
                rendered[key] = self._render(request, messages, texts)
            return len(rendered[key].tokens)

        fitted = context_window.fit(
            placing.with_one_head(request.messages),
            count=count,
            context_tokens=self.kit.context_tokens,
            max_tokens=self._reply_tokens(request),
        )
        chosen = rendered[len(fitted.messages)]
        tokens = np.array(chosen.tokens, np.int32)
        return Prompt(
            tokens,
            chosen.ends_thinking_open,
            fitted.num_dropped,
            chosen.num_shared,
            self.tokenizer.adds_space(chosen.tokens),
            given=_split(request.messages)[1],
            num_given=chosen.num_given,
        )

    def _reply_tokens(self, request: GenerationRequest) -> int | None:
        """Room the answer wants; a given beginning takes its own on top. None: as context_window has it."""
        wanted, opening = request.sampling.max_tokens, request.opening
        if opening is None or opening.is_whole:
            return wanted
        num_given = len(self.tokenizer.encode_text(opening.reasoning + opening.content))
        return (wanted or context_window.DEFAULT_REPLY_TOKENS) + num_given

    def count(self, request: GenerationRequest) -> int:
        """Tokens of the prompt that `build` would make; raises as it does."""
        return len(self.build(request).tokens)

    def dialect_of(self, request: GenerationRequest) -> Dialect:
        """How calls are written: as the request says, else as the model learnt it."""
        return request.tool_dialect or ("python" if self.kit.tools == "python" else "xml")

    def _render(self, request: GenerationRequest, messages: Sequence[ChatMessage], texts: _Texts) -> _Rendered:
        turns, given = _split(messages)
        segments = self.template.render(
            turns,
            thinking=request.thinking,
            date=request.date,
            tools=request.tools if request.may_call else (),
            dialect=self.dialect_of(request),
        )
        tokens: list[int] = []
        num_shared: int | None = None  # not known before some person's text comes
        for segment, ids in zip(segments, self._encoded(segments, texts), strict=True):
            if num_shared is None and not (segment.is_scaffold or (segment.is_system and request.is_system_shared)):
                num_shared = len(tokens)
            tokens += ids
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
        is_thought_open = tags is not None and tail.endswith(tags.open)
        if not given:
            return _Rendered(tokens, is_thought_open, num_shared or 0, 0)
        if tags is not None and is_thought_open:
            tokens += self.tokenizer.encode_scaffold(f"\n{tags.close}\n", begins=self.tokenizer.begins_after(tokens))
        ids = self.tokenizer.encode_text(given, begins=self.tokenizer.begins_after(tokens))
        return _Rendered(tokens + ids, False, num_shared or 0, len(ids))

    def _encoded(self, segments: Sequence[Segment], texts: _Texts) -> list[list[int]]:
        """Ids of each segment. People's texts go in one batch; a long history comes here several times as it is cut."""
        scaffold: dict[int, list[int]] = {}
        keys: dict[int, tuple[str, bool]] = {}
        begins, space = True, ""
        for index, segment in enumerate(segments):
            if segment.is_scaffold:
                text, space = segment.text, ""
                # Vocabularies have words with the space before them, so one that leads to a text goes with it.
                if text.endswith(" ") and index + 1 < len(segments) and not segments[index + 1].is_scaffold:
                    text, space = text[:-1], " "
                ids = scaffold[index] = self.tokenizer.encode_scaffold(text, begins=begins)
                begins = self.tokenizer.begins_after(ids) if ids else begins
            else:
                keys[index] = space + segment.text, begins
                begins, space = False, ""
        for begins in (True, False):
            missing = [text for text, own in dict.fromkeys(keys.values()) if own is begins and (text, own) not in texts]
            found = self.tokenizer.encode_batch(missing, begins=begins)
            texts.update(zip([(text, begins) for text in missing], found, strict=True))
        return [scaffold[index] if index in scaffold else texts[keys[index]] for index in range(len(segments))]


def _split(messages: Sequence[ChatMessage]) -> tuple[Sequence[ChatMessage], str]:
    """The turns to be answered, and the text that the answer goes on from: what assistant messages at the end say."""
    num_given = next((i for i, message in enumerate(reversed(messages)) if not _is_given(message)), len(messages))
    if not num_given:
        return messages, ""
    given = placing.BETWEEN.join(filter(None, (message.content for message in messages[-num_given:])))
    return messages[:-num_given] or (ChatMessage(role=Role.USER, content=""),), given


def _is_given(message: ChatMessage) -> bool:
    return message.role is Role.ASSISTANT and not message.tool_calls
