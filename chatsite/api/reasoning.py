"""How long an answer is to be thought over first, as the clients of several products say it.

Owns which of the words counts and what each means. Decoding checks types; an unknown word is refused by its field's
name. Knows nothing of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from inference.errors import InvalidRequest

# Tokens of thought. OpenAI's words promise no numbers; these suit a model that thinks for some thousand tokens.
EFFORTS: dict[str, int | None] = {"minimal": 128, "low": 512, "medium": 2048, "high": 8192, "xhigh": None}
_TYPES: dict[str, bool | None] = {"enabled": True, "disabled": False, "auto": None, "adaptive": None}


class ThinkingForm(msgspec.Struct):
    """`thinking` as Anthropic's, DeepSeek's and GLM's clients send it."""

    type: str
    budget_tokens: int | None = None


class ReasoningForm(msgspec.Struct):
    """`reasoning` as OpenRouter's clients send it."""

    effort: str | None = None
    enabled: bool | None = None
    max_tokens: int | None = None


class TemplateOptions(msgspec.Struct):
    """`enable_thinking` and `thinking` are what vLLM's clients send, by the model. `tool_dialect` is how calls are
    written: as JSON in tags (xml), or as Python, which SmolLM3 knows too."""

    enable_thinking: bool | None = None
    thinking: bool | None = None
    tool_dialect: Literal["xml", "python"] | None = None


@dataclass(frozen=True)
class Wish:
    """`is_on` None leaves it to the model. After `budget` tokens of thought, where it is given, the answer begins."""

    is_on: bool | None
    budget: int | None


def wish(
    *,
    thinking: bool | ThinkingForm | None,
    template: TemplateOptions | None,
    enable_thinking: bool | None,
    reasoning: ReasoningForm | None,
    effort: str | None,
    budget: int | None,
) -> Wish:
    """What all these fields together ask for: the most explicit wish counts.

    Raises:
        InvalidRequest: a word that is none of those offered; `param` names its field.
    """
    template, reasoning = template or TemplateOptions(), reasoning or ReasoningForm()
    effort = _effort(effort, "reasoning_effort") or _effort(reasoning.effort, "reasoning.effort")
    by_form = None
    if isinstance(thinking, ThinkingForm):
        if thinking.type not in _TYPES:
            raise InvalidRequest(
                f"thinking.type must be one of {', '.join(_TYPES)}, not {thinking.type[:40]!r}.", param="thinking.type"
            )
        by_form = thinking.budget_tokens
        thinking = _TYPES[thinking.type]
    tokens = next((one for one in (budget, by_form, reasoning.max_tokens) if one is not None), None)
    said = (
        False if tokens == 0 else None,
        thinking,
        template.enable_thinking,
        template.thinking,
        enable_thinking,
        reasoning.enabled,
        None if effort is None else effort != "none",
    )
    is_on = next((one for one in said if one is not None), None)
    return Wish(is_on, EFFORTS.get(effort or "") if tokens is None else tokens or None)


def _effort(word: str | None, param: str) -> str | None:
    if word is not None and word != "none" and word not in EFFORTS:
        raise InvalidRequest(f"{param} must be one of none, {', '.join(EFFORTS)}, not {word[:40]!r}.", param=param)
    return word
