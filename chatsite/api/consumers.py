"""`/v1` over ASGI: collects a body, answers as JSON or as server-sent events, and notices at once when the client goes.

The answer is written by a task of its own, so that `http.disconnect` is heard meanwhile; a client that leaves ends its
generation, unlike a person who leaves the chat page. Headers of a stream go out early, with comments while it waits;
whatever can be refused is refused before, with its status. Everything here runs on the event loop; what touches
database or Redis goes through a few threads of its own. Django's middleware does not run for these routes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, ParamSpec, TypeVar

import msgspec
import structlog
from channels.consumer import AsyncConsumer
from channels.db import database_sync_to_async
from channels.exceptions import StopConsumer
from django.conf import settings

from chatsite.accounts.models import ApiKey, User
from chatsite.api import completion, errors, responses, schemas
from chatsite.api.authentication import authenticate, counts_still, seconds_left
from chatsite.api.completion import Completion, Following, Signal, Text
from chatsite.chat.inference import inference_client
from chatsite.chat.streams.limits import RECHECK_SECONDS
from chatsite.chat.streams.revocation import until_revoked
from inference.coordination.log_view import tool_calls_of
from inference.messages.generation import CALL_TRUNCATED, ErrorFacts, Finish

log = structlog.get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

MAX_BODY_BYTES = 4 * 1024 * 1024
KNOWN_SECONDS = 0.5  # where a body takes longer its key is looked at again: it may have been revoked meanwhile
HEARTBEAT_SECONDS = 15.0
# After its end an answer is booked within milliseconds. Waiting for that lets a client that sends its next request at
# once find its place free; it never waits longer than this for it.
BOOKING_SECONDS = 1.0
MAX_WARNINGS = 8  # headers about one answer; proxies bound what all of them may take
MAX_WARNING_BYTES = 400

HEADERS = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
JSON_HEADERS = [(b"content-type", b"application/json")]
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

_threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="api")


async def in_thread(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run `call` where it may block. Its database connection goes back to the pool at its end."""
    run = database_sync_to_async(call, thread_sensitive=False, executor=_threads)
    result: R = await run(*args, **kwargs)
    return result


class ApiConsumer(AsyncConsumer):  # type: ignore[misc]  # channels has no types
    """One request. A subclass names its method and the scope it asks for, and writes the answer in `answer`."""

    channel_layer_alias = "none: tokens never take a channel layer"
    method: ClassVar[str] = "GET"
    needs: ClassVar[str] = ""

    def __init__(self) -> None:
        self._key: ApiKey | None = None  # known before the body is read on
        self._known_since = 0.0
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False  # the headers are out

    async def answer(self, key: ApiKey, body: bytes) -> None:
        raise NotImplementedError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._end_task()

    async def dispatch(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "http.request":
                await self._take_part(message.get("body", b""), is_last=not message.get("more_body"))
            case "http.disconnect":
                raise StopConsumer
            case unknown:
                raise ValueError(f"unexpected ASGI message {unknown!r}")

    async def _take_part(self, part: bytes, *, is_last: bool) -> None:
        if self._task is not None:  # the rest of a body that has been refused
            return
        try:
            if self._key is None:
                self._key, self._known_since = await self._admit(), self._now()
            self._num_bytes += len(part)
            if self._num_bytes > MAX_BODY_BYTES:
                raise errors.BodyTooLarge(MAX_BODY_BYTES)
        except Exception as error:  # noqa: BLE001  the edge of the process: every failure is answered
            self._parts.clear()
            self._task = asyncio.create_task(self._refuse(errors.of(error)))
            return
        self._parts.append(part)
        if is_last:
            body = b"".join(self._parts)
            self._parts.clear()
            self._task = asyncio.create_task(self._run(self._key, body))

    async def _admit(self) -> ApiKey:
        """Who asks. What can be refused without the body is refused before it has come."""
        if self.scope["method"] != self.method:
            raise errors.MethodRefused(self.scope["method"], self.method)
        return await in_thread(authenticate, self._header(b"authorization"), needs=self.needs)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _end_task(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, key: ApiKey, body: bytes) -> None:
        try:
            if self._now() - self._known_since > KNOWN_SECONDS:
                key = await self._admit()
            await self.answer(key, body)
        except Exception as error:  # noqa: BLE001  the edge of the process: every failure is answered
            await self._refuse(errors.of(error))

    async def _refuse(self, error: errors.ApiError) -> None:
        if self._has_begun:
            await self._send_body(b"data: " + error.body + b"\n\n")
        else:
            await self._begin(error.status, JSON_HEADERS + error.headers)
            await self._send_body(error.body)

    def _header(self, name: bytes) -> str | None:
        return next((value.decode("latin-1") for key, value in self.scope["headers"] if key == name), None)

    async def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self._has_begun = True
        named = {name for name, _ in headers}
        everywhere = [pair for pair in HEADERS if pair[0] not in named]
        if settings.SECURE_HSTS_SECONDS and self.scope.get("scheme") == "https":
            everywhere.append((b"strict-transport-security", f"max-age={settings.SECURE_HSTS_SECONDS}".encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": [*everywhere, *headers]})

    async def _send_body(self, body: bytes, *, is_last: bool = True) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def _send_json(self, body: msgspec.Struct, headers: list[tuple[bytes, bytes]] | None = None) -> None:
        await self._begin(200, JSON_HEADERS + (headers or []))
        await self._send_body(msgspec.json.encode(body))


class ChatCompletions(ApiConsumer):
    method = "POST"
    needs = "chat"

    def __init__(self) -> None:
        super().__init__()
        self._has_ended = False  # the generation: nothing is left to stop

    async def answer(self, key: ApiKey, body: bytes) -> None:
        """Write the answer, unless the key ends meanwhile: then the answer does, too."""
        answering = asyncio.create_task(self._answer(key, schemas.parse(body)))
        revoked = asyncio.create_task(_until_revoked(key))
        try:
            await asyncio.wait({answering, revoked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            was_answered = answering.done()
            for task in (answering, revoked):
                task.cancel()
            await asyncio.gather(answering, revoked, return_exceptions=True)
        if was_answered:
            answering.result()
            return
        revoked.result()
        raise errors.Unauthorized("This API key has ended, and the answer with it.")

    async def _answer(self, key: ApiKey, request: schemas.ChatCompletionRequest) -> None:
        admission = asyncio.create_task(in_thread(completion.admit, key.user, request, key=key))
        try:
            admitted = await asyncio.shield(admission)
            following = Following(admitted.generation_id)
            try:
                writer = self._stream if request.is_stream else self._collect
                await writer(admitted, request, following)
            finally:
                await following.close()
        except BaseException:
            # The client is gone, or cannot be served: either way nobody will read on.
            if not self._has_ended:
                await asyncio.shield(self._abandon(key.user, admission))
            raise

    async def _abandon(self, user: User, admission: asyncio.Task[Completion]) -> None:
        """Stop what was admitted. A client may leave while that is still going on: then as soon as it is known."""
        await asyncio.wait({admission})
        if admission.cancelled() or admission.exception() is not None:
            return
        admitted = admission.result()
        log.info("answer abandoned", generation_id=str(admitted.generation_id))
        await in_thread(completion.abandon, user, admitted.generation_id)

    async def _collect(
        self, admitted: Completion, request: schemas.ChatCompletionRequest, following: Following
    ) -> None:
        texts: list[Text] = []
        while not isinstance(piece := await self._next(admitted, following), Finish):
            if isinstance(piece, Text):
                texts.append(piece)
            elif piece is Signal.RESTARTED:
                texts = []
        word = _finish_word(piece, is_call_cut=any(_is_cut_call(text) for text in texts))
        message = responses.AnswerMessage(content=_joined(texts, "content"))
        if reasoning := _joined(texts, "reasoning"):
            message.reasoning_content = reasoning
        if calls := tool_calls_of((text.delta for text in texts), with_cut=True):
            message.tool_calls = [responses.CalledTool.of(call) for call in calls]
            message.content = message.content or None
        logprobs = None
        if request.logprobs:
            logprobs = responses.LogprobsBody.of([told for text in texts for told in text.logprobs])
        await self._wait_for_booking(following)
        response = responses.ChatCompletion(
            id=admitted.id,
            created=admitted.created,
            model=admitted.model,
            choices=[responses.AnswerChoice(message=message, finish_reason=word, logprobs=logprobs)],
            usage=responses.UsageBody.of(piece.usage),
            warnings=admitted.warnings or msgspec.UNSET,
        )
        await self._send_json(response, _headers_of(admitted))

    async def _stream(self, admitted: Completion, request: schemas.ChatCompletionRequest, following: Following) -> None:
        await self._begin(200, [*STREAM_HEADERS, *_headers_of(admitted)])
        await self._send_body(b": queued\n\n", is_last=False)  # no server sends headers before some body
        usage = None if request.includes_usage else msgspec.UNSET

        async def send(*choices: responses.ChunkChoice, usage: Any = usage) -> None:
            chunk = responses.Chunk(
                id=admitted.id, created=admitted.created, model=admitted.model, choices=list(choices), usage=usage
            )
            await self._send_body(b"data: " + msgspec.json.encode(chunk) + b"\n\n", is_last=False)

        has_text = is_call_cut = False
        indices: dict[int, int] = {}  # of calls as we have them -> as the client has
        while not isinstance(piece := await self._next(admitted, following), Finish):
            if isinstance(piece, Text):
                choice = _chunk_choice(piece, indices)
                is_call_cut = is_call_cut or _is_cut_call(piece)
                if choice is None:
                    continue
                if not has_text:
                    content = None if piece.delta.call is not None else ""
                    await send(responses.ChunkChoice(responses.ChunkDelta(role="assistant", content=content)))
                    has_text = True
                await send(choice)
            elif piece is Signal.SILENCE:
                await self._send_body(b": ping\n\n", is_last=False)
            elif piece is Signal.RESTARTED and has_text:  # what was sent cannot be taken back
                raise errors.AnswerFailed("The answer was interrupted and cannot go on.", code="answer_interrupted")
        word = _finish_word(piece, is_call_cut=is_call_cut)
        if not has_text:
            await send(responses.ChunkChoice(responses.ChunkDelta(role="assistant", content="")))
        await send(responses.ChunkChoice(responses.ChunkDelta(), finish_reason=word))
        await self._wait_for_booking(following)
        if request.includes_usage:
            await send(usage=responses.UsageBody.of(piece.usage))
        await self._send_body(b"data: [DONE]\n\n")

    async def _next(self, admitted: Completion, following: Following) -> completion.News:
        """The next news; however the generation ended, it is a `Finish`."""
        news: completion.News = await following.next(seconds=HEARTBEAT_SECONDS)
        if news in (Signal.LOST, Signal.OVER):
            news = await in_thread(completion.end_of, admitted.generation_id) or Signal.LOST  # a log may yet come
        if isinstance(news, Finish):
            self._has_ended = True
            log.info(
                "answer sent",
                generation_id=str(admitted.generation_id),
                model=admitted.model,
                reason=news.reason,
                prompt_tokens=news.usage.prompt_tokens,
                completion_tokens=news.usage.completion_tokens,
            )
        return news

    async def _wait_for_booking(self, following: Following) -> None:
        news = await following.next(seconds=BOOKING_SECONDS)
        if news is not Signal.OVER:
            log.warning("answer not booked yet")


class Models(ApiConsumer):
    """GET /v1/models, and one of them by name."""

    needs = "models"

    async def answer(self, key: ApiKey, body: bytes) -> None:
        models = await in_thread(_served_models)
        wanted = self.scope["url_route"]["kwargs"].get("model")
        if wanted is None:
            await self._send_json(responses.ModelList(data=list(models.values())))
        elif wanted in models:
            await self._send_json(models[wanted])
        else:
            raise errors.ModelUnknown(wanted)


class UnknownPath(ApiConsumer):
    """Everything else below /v1, by any method, signed in or not."""

    async def _admit(self) -> ApiKey:
        raise errors.NothingHere(f"There is no {self.scope['method']} {self.scope['path']} here.")


async def _until_revoked(key: ApiKey) -> None:
    counts = functools.partial(in_thread, counts_still, key.pk)
    await until_revoked(key.user_id, counts, every=RECHECK_SECONDS, ends_in=await in_thread(seconds_left, key))


def _served_models() -> dict[str, responses.ModelObject]:
    """What live workers serve, `created` being the start of the eldest."""
    models: dict[str, responses.ModelObject] = {}
    for card in sorted(inference_client().workers(), key=lambda card: (card.model.name, card.started_at)):
        if card.state != "loading":
            models.setdefault(
                card.model.name,
                responses.ModelObject(
                    id=card.model.name, created=int(card.started_at), context_length=card.model.context_tokens
                ),
            )
    return models


def _headers_of(admitted: Completion) -> list[tuple[bytes, bytes]]:
    warnings = [sentence.encode("ascii", "replace")[:MAX_WARNING_BYTES] for sentence in admitted.warnings]
    return [
        (b"x-request-id", str(admitted.generation_id).encode()),
        *((b"x-smolfleet-warning", warning) for warning in warnings[:MAX_WARNINGS]),
    ]


def _joined(texts: list[Text], kind: str) -> str:
    return "".join(text.delta.text for text in texts if text.delta.kind == kind)


def _chunk_choice(text: Text, indices: dict[int, int]) -> responses.ChunkChoice | None:
    """`text` as a chunk; None where it only says that a call failed, whose text is in the content then."""
    if (call := text.delta.call) is not None:
        if call.error is not None:
            return None
        index = indices.setdefault(call.index, len(indices))
        return responses.ChunkChoice(responses.ChunkDelta(tool_calls=[responses.ToolCallPiece.of(call, index)]))
    if text.delta.kind == "reasoning":
        return responses.ChunkChoice(responses.ChunkDelta(reasoning_content=text.delta.text))
    logprobs = responses.LogprobsBody.of(text.logprobs) if text.logprobs else None
    return responses.ChunkChoice(responses.ChunkDelta(content=text.delta.text), logprobs=logprobs)


def _is_cut_call(text: Text) -> bool:
    call = text.delta.call
    return call is not None and call.error is not None and call.error.code == CALL_TRUNCATED


def _finish_word(finish: Finish, *, is_call_cut: bool) -> responses.FinishWord:
    """OpenAI's word for a good end; calls of which the last is cut are none to make. Raises ApiError for a bad one."""
    word = responses.FINISH_WORDS.get(finish.reason)
    if word is not None:
        return "length" if is_call_cut and finish.cut else word
    raise errors.ended_badly(finish.error or ErrorFacts(code="cancelled", message="The answer was stopped."))
