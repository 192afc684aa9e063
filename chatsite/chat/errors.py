"""Why a message is not accepted, as types. What was accepted never raises: it ends as a state of its answer.

SendRefused                 code, one sentence for people, HTTP status, the numbers behind it
├── EmptyMessage            400  nothing but white space
├── MessageTooLong          413  more characters than the site takes
├── InstructionsTooLong     413  the same of a conversation's instructions
├── PromptTooLong           400  more tokens than the model's context holds, with both numbers
├── InvalidSettings         400  a sampling value out of range, or a template that refuses the conversation
├── ModelUnknown            400  no such model on this site
├── NotAnAnswer             400  retry of something that is not a settled answer
├── NotReportable           400  a report of an answer that its reader does not find bad
├── ReportsClosed           409  a report while nobody may read it: the site's review policy is off
├── NothingToResume         400  an answer that came to its own end, or never began
├── AnswerRunning           409  this conversation's answer is still being written
├── AnswerGone              409  the same press of Send again, after its answer was deleted
├── BranchGrew              409  more messages would be deleted than was said; how many now
├── QueueMoved              409  an entry of the queue was sent, edited or removed meanwhile
├── QueueFull               409  as many messages wait in this conversation as may
├── TooManyActive           429  the user has as many answers under way as one may have
├── TooManyRequests         429  the user asks too often; `retry_after_seconds`
├── QuotaExceeded           429  not enough tokens are left of a day's or month's; `retry_after_seconds`, all numbers
├── ConversationFull        400  it has as many messages as one may have
├── SiteBusy                503  as many answers wait for this model as the site lets wait
├── NotATag                 400  nothing but white space, or too long for a tag
├── TooManyTags             400  the user, or the conversation, has as many tags as one may have
└── TooManyPinned           400  the user has as many pinned conversations as one may have
"""

from __future__ import annotations

from django.utils.translation import gettext as _

from chatsite.usage import quotas, words
from chatsite.usage.words import grouped


class SendRefused(Exception):
    """Base of all. Nothing was stored. `facts` are JSON values for programs and templates."""

    code: str = "refused"
    http_status: int = 400

    def __init__(self, message: str, **facts: int | str | None) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    @property
    def kept_message(self) -> str:
        """The sentence where it is read later, too: without what is true for the moment alone."""
        return self.message

    @property
    def retry_after_seconds(self) -> int | None:
        """When it passes by itself, as far as that is known."""
        seconds = self.facts.get("retry_after_seconds")
        return int(seconds) if seconds else None


class EmptyMessage(SendRefused):
    code = "empty_message"

    def __init__(self) -> None:
        super().__init__(_("The message is empty."))


class MessageTooLong(SendRefused):
    code = "message_too_long"
    http_status = 413

    def __init__(self, *, num_chars: int, max_chars: int) -> None:
        super().__init__(
            _("The message has %(number)s characters; at most %(most)s fit.")
            % {"number": grouped(num_chars), "most": grouped(max_chars)},
            num_chars=num_chars,
            max_chars=max_chars,
        )


class InstructionsTooLong(SendRefused):
    code = "instructions_too_long"
    http_status = 413

    def __init__(self, *, num_chars: int, max_chars: int) -> None:
        super().__init__(
            _("The instructions have %(number)s characters; at most %(most)s fit.")
            % {"number": grouped(num_chars), "most": grouped(max_chars)},
            num_chars=num_chars,
            max_chars=max_chars,
        )


class PromptTooLong(SendRefused):
    code = "prompt_too_long"

    def __init__(self, *, prompt_tokens: int, limit_tokens: int) -> None:
        super().__init__(
            _("The message has %(number)s tokens; this model takes at most %(most)s.")
            % {"number": grouped(prompt_tokens), "most": grouped(limit_tokens)},
            prompt_tokens=prompt_tokens,
            limit_tokens=limit_tokens,
        )


class InvalidSettings(SendRefused):
    code = "invalid_request"


class ModelUnknown(SendRefused):
    code = "model_unknown"

    def __init__(self, model: str) -> None:
        super().__init__(
            _("There is no model “%(name)s” on this site.") % {"name": model}
            if model
            else _("No worker has served a model here yet, and DEFAULT_MODEL names none.")
        )
        if not model:
            self.http_status = 503  # the operator's to mend, not the sender's


class NotAnAnswer(SendRefused):
    code = "not_an_answer"

    def __init__(self) -> None:
        super().__init__(_("Only an answer that has ended can be written again."))


class NotReportable(SendRefused):
    code = "not_reportable"

    def __init__(self) -> None:
        super().__init__(_("Only an answer that you find bad can be shown to reviewers."))


class ReportsClosed(SendRefused):
    code = "reports_closed"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            _(
                "Reviewing is switched off on this site: nobody could read the report. "
                "Without the report your rating is saved."
            )
        )


class NothingToResume(SendRefused):
    code = "nothing_to_resume"

    def __init__(self) -> None:
        super().__init__(_("This answer came to its end, or has no text to go on from. Retry writes another one."))


class AnswerRunning(SendRefused):
    code = "answer_running"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(_("The answer before is still being written. Stop it, or wait until it has ended."))


class AnswerGone(SendRefused):
    code = "answer_gone"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(_("This message was sent, and its answer has been deleted since."))


class BranchGrew(SendRefused):
    code = "branch_grew"
    http_status = 409

    def __init__(self, *, num_messages: int) -> None:
        words = _("There are %(number)d messages to delete by now. Ask for it again if all of them may go.")
        super().__init__(words % {"number": num_messages}, num_messages=num_messages)


class QueueMoved(SendRefused):
    code = "queue_moved"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(_("This message is no longer in the queue as it was: it was sent or changed meanwhile."))


class QueueFull(SendRefused):
    code = "queue_full"
    http_status = 409

    def __init__(self, *, max_queued: int) -> None:
        super().__init__(
            _("%(most)d messages wait here already; that is the most.") % {"most": max_queued}, max_queued=max_queued
        )


class TooManyActive(SendRefused):
    code = "too_many_active"
    http_status = 429

    def __init__(self, *, num_active: int, max_active: int) -> None:
        super().__init__(
            _("You have %(number)d answers under way; %(most)d is the most at one time.")
            % {"number": num_active, "most": max_active},
            num_active=num_active,
            max_active=max_active,
        )


class TooManyRequests(SendRefused):
    code = "too_many_requests"
    http_status = 429

    def __init__(self, message: str, *, retry_after_seconds: int) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)


class QuotaExceeded(SendRefused):
    code = "quota_exceeded"
    http_status = 429

    def __init__(self, full: quotas.QuotaFull) -> None:
        balance = full.balance
        self.is_held = full.is_held  # only by answers under way
        self._why, when = words.why(full), words.when(balance.window)
        self._relief = "" if full.is_held else _("New ones come %(when)s.") % {"when": when}
        wait = words.wait(full.retry_after_seconds)
        relief = "" if full.is_held else _("New ones come %(when)s (in %(wait)s).") % {"when": when, "wait": wait}
        super().__init__(
            f"{self._why} {relief}".strip(),
            scope=balance.scope.value,
            group=balance.pool.group_name if balance.pool else None,
            limit=balance.limit,
            used=balance.used,
            reserved=balance.reserved,
            left=balance.left,
            needed=full.needed,
            reset_at=balance.resets_at.isoformat(),
            retry_after_seconds=full.retry_after_seconds,
        )

    @property
    def kept_message(self) -> str:
        return f"{self._why} {self._relief}".strip()


class ConversationFull(SendRefused):
    code = "conversation_full"

    def __init__(self, *, max_messages: int) -> None:
        super().__init__(
            _("This conversation has its %(number)s messages; start a new one.") % {"number": grouped(max_messages)},
            max_messages=max_messages,
        )


class SiteBusy(SendRefused):
    code = "site_busy"
    http_status = 503

    def __init__(self, *, num_active: int) -> None:
        super().__init__(_("Too many answers are waiting already. Try again in a minute."), num_active=num_active)


class NotATag(SendRefused):
    code = "not_a_tag"

    def __init__(self, *, max_chars: int) -> None:
        super().__init__(
            _("A tag has between 1 and %(max_chars)s characters.") % {"max_chars": max_chars}, max_chars=max_chars
        )


class TooManyTags(SendRefused):
    code = "too_many_tags"

    def __init__(self, *, max_tags: int) -> None:
        super().__init__(
            _("There are %(max_tags)s tags already, the most there may be. Take one away first.")
            % {"max_tags": max_tags},
            max_tags=max_tags,
        )


class TooManyPinned(SendRefused):
    code = "too_many_pinned"

    def __init__(self, *, max_pinned: int) -> None:
        super().__init__(
            _("%(max_pinned)s conversations are pinned already, the most there may be. Let go of one first.")
            % {"max_pinned": max_pinned},
            max_pinned=max_pinned,
        )
