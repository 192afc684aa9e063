"""Why a message is not accepted, as types. What was accepted never raises: it ends as a state of its answer.

SendRefused                 code, one sentence for people, HTTP status, the numbers behind it
├── EmptyMessage            400  nothing but white space
├── MessageTooLong          413  more characters than the site takes
├── InstructionsTooLong     413  the same of a conversation's instructions
├── PromptTooLong           400  more tokens than the model's context holds, with both numbers
├── InvalidSettings         400  a sampling value out of range, or a template that refuses the conversation
├── ModelUnknown            400  no such model on this site
├── NotAnAnswer             400  retry of something that is not a settled answer
├── NothingToResume         400  an answer that came to its own end, or never began
├── AnswerRunning           409  this conversation's answer is still being written
├── QueueMoved              409  an entry of the queue was sent, edited or removed meanwhile
├── QueueFull               409  as many messages wait in this conversation as may
├── TooManyActive           429  the user has as many answers under way as one may have
├── TooManyRequests         429  the user asks too often; `retry_after_seconds`
├── ConversationFull        400  it has as many messages as one may have
└── SiteBusy                503  as many answers wait for this model as the site lets wait
"""

from __future__ import annotations


class SendRefused(Exception):
    """Base of all. Nothing was stored. `facts` are JSON values for programs and templates."""

    code: str = "refused"
    http_status: int = 400

    def __init__(self, message: str, **facts: int | str | None) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class EmptyMessage(SendRefused):
    code = "empty_message"

    def __init__(self) -> None:
        super().__init__("The message is empty.")


class MessageTooLong(SendRefused):
    code = "message_too_long"
    http_status = 413

    def __init__(self, *, num_chars: int, max_chars: int) -> None:
        super().__init__(
            f"The message has {num_chars:,} characters; at most {max_chars:,} fit.",
            num_chars=num_chars,
            max_chars=max_chars,
        )


class InstructionsTooLong(SendRefused):
    code = "instructions_too_long"
    http_status = 413

    def __init__(self, *, num_chars: int, max_chars: int) -> None:
        super().__init__(
            f"The instructions have {num_chars:,} characters; at most {max_chars:,} fit.",
            num_chars=num_chars,
            max_chars=max_chars,
        )


class PromptTooLong(SendRefused):
    code = "prompt_too_long"

    def __init__(self, *, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(
            f"The message has {prompt_tokens:,} tokens; this model takes at most {limit_tokens:,}.",
            prompt_tokens=prompt_tokens,
            limit_tokens=limit_tokens,
        )


class InvalidSettings(SendRefused):
    code = "invalid_request"


class ModelUnknown(SendRefused):
    code = "model_unknown"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"There is no model {model!r} on this site."
            if model
            else "No worker has served a model here yet, and DEFAULT_MODEL names none."
        )
        if not model:
            self.http_status = 503  # the operator's to mend, not the sender's


class NotAnAnswer(SendRefused):
    code = "not_an_answer"

    def __init__(self) -> None:
        super().__init__("Only an answer that has ended can be written again.")


class NothingToResume(SendRefused):
    code = "nothing_to_resume"

    def __init__(self) -> None:
        super().__init__("This answer came to its end, or has no text to go on from. Retry writes another one.")


class AnswerRunning(SendRefused):
    code = "answer_running"
    http_status = 409

    def __init__(self) -> None:
        super().__init__("The answer before is still being written. Stop it, or wait until it has ended.")


class QueueMoved(SendRefused):
    code = "queue_moved"
    http_status = 409

    def __init__(self) -> None:
        super().__init__("This message is no longer in the queue as it was: it was sent or changed meanwhile.")


class QueueFull(SendRefused):
    code = "queue_full"
    http_status = 409

    def __init__(self, *, max_queued: int) -> None:
        super().__init__(f"{max_queued} messages wait here already; that is the most.", max_queued=max_queued)


class TooManyActive(SendRefused):
    code = "too_many_active"
    http_status = 429

    def __init__(self, *, num_active: int, max_active: int) -> None:
        super().__init__(
            f"You have {num_active} answers under way; {max_active} is the most at one time.",
            num_active=num_active,
            max_active=max_active,
        )


class TooManyRequests(SendRefused):
    code = "too_many_requests"
    http_status = 429

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class ConversationFull(SendRefused):
    code = "conversation_full"

    def __init__(self, *, max_messages: int) -> None:
        super().__init__(
            f"This conversation has its {max_messages:,} messages; start a new one.", max_messages=max_messages
        )


class SiteBusy(SendRefused):
    code = "site_busy"
    http_status = 503

    def __init__(self, *, num_active: int) -> None:
        super().__init__("Too many answers are waiting already. Try again in a minute.", num_active=num_active)
