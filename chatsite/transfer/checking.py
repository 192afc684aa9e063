"""A record as it came -> one that fits this site: clean, within its limits, a real tree. Refused with its place."""

from __future__ import annotations

import datetime
import re
from typing import Any

import msgspec
from django.conf import settings
from django.utils.translation import gettext as _

from chatsite.chat.files.extract import name_of
from chatsite.chat.models import REASON_CHARS, TAG_CHARS, TITLE_CHARS, Feedback
from chatsite.chat.text import clean, clean_typed
from chatsite.transfer.errors import ImportRefused
from chatsite.transfer.records import (
    AnswerRecord,
    CallRecord,
    ConversationRecord,
    FeedbackRecord,
    FileRecord,
    MessageRecord,
)
from inference.errors import InvalidRequest
from inference.messages.generation import SamplingParams

MAX_TEXT_CHARS = 4_000_000  # of one message; no model writes so much
MAX_CALLS = 128  # of one answer
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
MAX_TAGS = 50
YEARS = range(1970, 9_999)  # of times: what is outside is none, and beyond some databases
MAX_COUNT = 2**31 - 1  # what a column of numbers holds
COUNTS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "num_dropped")

_arguments_decoder = msgspec.json.Decoder(dict[str, Any])  # made here: see inference.messages.serialization


def checked(record: ConversationRecord) -> ConversationRecord:
    """Raises ImportRefused."""
    site = settings.SMOLFLEET
    if (number := len(record.messages)) > site.max_conversation_messages:
        words = {"n": number, "most": site.max_conversation_messages}
        raise ImportRefused(_("it has %(n)d messages; at most %(most)d fit") % words, http_status=413)
    if record.leaf is not None and not 0 <= record.leaf < number:
        raise ImportRefused(_("“leaf” names message %d, which is not there") % record.leaf)
    _check_sampling(record)
    _check_times("conversation", record.created_at, record.updated_at, record.pinned_at, record.archived_at)
    title = " ".join(clean(record.title).split())
    return msgspec.structs.replace(
        record,
        id=clean(record.id)[:200],
        title=title if len(title) <= TITLE_CHARS else title[: TITLE_CHARS - 1] + "…",
        model=clean(record.model)[:100],
        system_prompt=_text(record.system_prompt, "system_prompt", site.max_message_chars),
        tags=sorted({name for tag in record.tags[:MAX_TAGS] if (name := " ".join(clean(tag).split())[:TAG_CHARS])}),
        messages=[_message(message, place) for place, message in enumerate(record.messages)],
    )


def is_time_of_a_chat(moment: datetime.datetime) -> bool:
    return moment.year in YEARS


def _check_times(where: str, *moments: datetime.datetime | None) -> None:
    for moment in moments:
        if moment is not None and not is_time_of_a_chat(moment):
            raise ImportRefused(_("%s has a time that is none") % where)


def _check_sampling(record: ConversationRecord) -> None:
    try:
        SamplingParams(
            temperature=record.temperature,
            top_p=record.top_p,
            max_tokens=record.max_tokens,
            thinking_budget=record.thinking_budget,
        ).check()
    except InvalidRequest as error:
        raise ImportRefused(error.message.rstrip(".")) from error


def _message(message: MessageRecord, place: int) -> MessageRecord:
    where = f"messages[{place}]"
    if message.parent is not None and not 0 <= message.parent < place:
        raise ImportRefused(_("%s.parent must name a message before it") % where)
    if message.role == "user" and (message.answer or message.feedback or message.calls):
        raise ImportRefused(_("%s is a question and has what only answers have") % where)
    answer = message.answer
    _check_times(where, message.created_at, message.edited_at)
    _check_times(f"{where}.answer", *((answer.created_at, answer.ended_at) if answer else ()))
    return msgspec.structs.replace(
        message,
        content=_text(message.content, f"{where}.content", MAX_TEXT_CHARS),
        reasoning=_text(message.reasoning, f"{where}.reasoning", MAX_TEXT_CHARS),
        files=[_file(file, f"{where}.files[{number}]") for number, file in enumerate(message.files)],
        calls=_calls(message.calls, f"{where}.calls"),
        feedback=_feedback(message.feedback) if message.feedback else None,
        answer=_answer(message.answer, where) if message.answer else None,
    )


def _calls(calls: list[CallRecord], where: str) -> list[CallRecord]:
    if len(calls) > MAX_CALLS or len({call.id for call in calls}) < len(calls):
        words = {"where": where, "most": MAX_CALLS}
        raise ImportRefused(_("%(where)s: at most %(most)d calls fit, each with an id of its own") % words)
    for call in calls:
        if not call.id or not TOOL_NAME.fullmatch(call.name):
            raise ImportRefused(_("%s: a call has an id, and a name of letters, digits, - and _") % where)
    return [
        msgspec.structs.replace(
            call,
            arguments=_arguments(call, f"{where}.arguments"),
            result=_text(call.result, f"{where}.result", MAX_TEXT_CHARS),
        )
        for call in calls
    ]


def _arguments(call: CallRecord, where: str) -> str:
    text = _text(call.arguments, where, MAX_TEXT_CHARS)
    try:
        _arguments_decoder.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise ImportRefused(_("%s must be a JSON object") % where) from error
    return text


def _text(text: str, where: str, max_chars: int) -> str:
    if len(text) > max_chars:
        words = {"where": where, "n": len(text), "most": max_chars}
        raise ImportRefused(_("%(where)s has %(n)d characters; at most %(most)d fit") % words, http_status=413)
    return clean_typed(text)


def _file(file: FileRecord, where: str) -> FileRecord:
    return msgspec.structs.replace(
        file,
        name=name_of(file.name),
        media_type=clean(file.media_type)[:100],
        text=_text(file.text, f"{where}.text", settings.SMOLFLEET.max_file_chars),
        num_bytes=_count(file.num_bytes),
        num_tokens=None if file.num_tokens is None else _count(file.num_tokens),
    )


def _feedback(feedback: FeedbackRecord) -> FeedbackRecord:
    reason = feedback.reason if feedback.reason in Feedback.Reason.values else ""
    return msgspec.structs.replace(feedback, reason=reason, comment=clean_typed(feedback.comment)[:REASON_CHARS])


def _answer(answer: AnswerRecord, where: str) -> AnswerRecord:
    if not 0 <= answer.decode_seconds < 1e9:  # also refuses NaN
        raise ImportRefused(_("%s.answer.decode_seconds is no time") % where)
    return msgspec.structs.replace(
        answer,
        model=clean(answer.model)[:100],
        finish_reason=clean(answer.finish_reason)[:16],
        cut=clean(answer.cut)[:16],
        error_code=clean(answer.error_code)[:64],
        error_message=clean(answer.error_message)[:2_000],
        worker=clean(answer.worker)[:200],
        **{name: _count(getattr(answer, name)) for name in COUNTS},
    )


def _count(number: int) -> int:
    return min(max(0, number), MAX_COUNT)
