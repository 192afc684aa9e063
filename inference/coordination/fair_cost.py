"""What an answer counts for in fairness, in prefilled tokens: as guessed when it is claimed, as measured when it ends.

Knows nothing of users or counters; the waiting room charges the one, the log settles the other.
"""

from __future__ import annotations

from inference.messages.generation import GenerationRequest, Usage

COMPLETION_WEIGHT = 2  # a decoded token holds the device about as long as two prefilled ones hold it in a full batch
GUESSED_COMPLETION_TOKENS = 512  # of an answer that has not begun
CHARS_PER_TOKEN = 4


def cost(usage: Usage) -> int:
    """What an answer counts for in fairness, in prefilled tokens."""
    return max(0, usage.prompt_tokens - usage.cached_tokens) + COMPLETION_WEIGHT * usage.completion_tokens


def estimated_cost(request: GenerationRequest) -> int:
    """What it will probably count for: charged when it is claimed, settled when it ends."""
    prompt = request.prompt_tokens or sum(len(m.content) for m in request.messages) // CHARS_PER_TOKEN
    completion = min(request.sampling.max_tokens or GUESSED_COMPLETION_TOKENS, GUESSED_COMPLETION_TOKENS)
    return prompt + COMPLETION_WEIGHT * completion
