"""Conversations, messages and generations in Django's admin: their frame alone, never what anybody wrote.

Reading text, an opinion's comment included, is a matter of `/review/`, where the site's policy decides and it is
recorded first; this page must not be a way around that. A row's page leads there, where the reader may. So no text
column is loaded or shown, no lookup in the address may ask about one, nothing prints an object (whose text form quotes
it), and the views that would (history, autocomplete) are shut. Everything is read-only: `actions` alone writes.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, ClassVar, cast
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from chatsite.chat.models import Attachment, Conversation, Feedback, Generation, Message

MAX_COUNTED_ROWS = 10_000


class CappedPaginator(Paginator):  # type: ignore[type-arg]  # Django itself is not generic
    """Counts no further than a list is ever leafed through; older rows are found by owner or id."""

    @cached_property
    def count(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by()[:MAX_COUNTED_ROWS].count()


class FrameAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django itself is not generic
    """Shows the columns named in `shown` (and methods), of rows whose `text_columns` are never loaded."""

    text_columns: ClassVar[tuple[str, ...]] = ()
    shown: ClassVar[tuple[str, ...]] = ()
    filters: ClassVar[tuple[str, ...]] = ()  # shown beside the list
    more_filters: ClassVar[tuple[str, ...]] = ()  # by address alone: listing their values would read the whole table
    owner_path: ClassVar[str]  # from the row to the user who owns it
    conversation_path: ClassVar[str] = ""  # from the row to the id of its conversation; empty: it has none
    search_help_text = "A user name or e-mail address, whole, or an id."
    search_fields = ("id",)  # switches the search box on; `get_search_results` says what is searched
    change_form_template = "review/admin_frame.html"
    show_full_result_count = False
    list_per_page = 50
    paginator = CappedPaginator
    actions = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer(*self.text_columns)

    def get_list_filter(self, request: HttpRequest) -> Any:
        return self.filters

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            for name in self.text_columns:  # Django asks for `str(row)`, which would load and quote them
                setattr(row, name, "")
        return row

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.shown

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.shown

    def get_search_fields(self, request: HttpRequest) -> Any:
        match = request.resolver_match
        if match is not None and match.url_name == "autocomplete":  # it prints objects
            return ()
        return self.search_fields

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        wanted = search_term.strip()
        if not wanted:
            return queryset, False
        try:
            return queryset.filter(Q(pk=UUID(wanted)) | Q(**{f"{self.owner_path}__pk": UUID(wanted)})), False
        except ValueError:
            names = (f"{self.owner_path}__username__iexact", f"{self.owner_path}__email__iexact")
            return queryset.filter(Q(**{names[0]: wanted}) | Q(**{names[1]: wanted})), False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Only those filters, and ids: `?content__startswith=` would spell out a message."""
        return lookup.split("__")[0] in {*self.filters, *self.more_filters, "id", "pk"}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        raise PermissionDenied  # nothing is changed here, and its heading prints the object

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        context["subtitle"] = context["original"].pk
        path = self.conversation_path
        context["conversation_id"] = attrgetter(path)(context["original"]) if path else None
        return super().render_change_form(request, context, *args, **kwargs)


def _link(model: type[Model], pk: object) -> SafeString | str:
    if pk is None:
        return "-"
    return format_html('<a href="{}">{}</a>', reverse(f"admin:chat_{model._meta.model_name}_change", args=[pk]), pk)


@admin.register(Conversation)
class ConversationAdmin(FrameAdmin):
    text_columns = ("title", "system_prompt")
    owner_path = "owner"
    conversation_path = "pk"
    shown = ("id", "owner", "model", "thinking", "prompt_date", "created_at", "updated_at")
    list_display = ("id", "owner", "model", "created_at", "updated_at")
    filters = ("created_at", "updated_at")
    more_filters = ("model",)
    list_select_related = ("owner",)
    raw_id_fields = ("owner",)
    ordering = ("-updated_at",)


@admin.register(Message)
class MessageAdmin(FrameAdmin):
    text_columns = ("content", "reasoning")
    owner_path = "conversation__owner"
    conversation_path = "conversation_id"
    shown = ("id", "owner", "conversation_link", "parent_link", "role", "created_at")
    list_display = ("id", "owner", "role", "created_at")
    filters = ("role", "created_at")
    raw_id_fields = ("conversation", "parent")
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        rows: QuerySet[Message] = super().get_queryset(request)
        columns = [f"conversation__{name}" for name in ConversationAdmin.text_columns]
        return rows.select_related("conversation__owner").defer(*self.text_columns, *columns)

    @admin.display(description="Owner")
    def owner(self, row: Message) -> str:
        return row.conversation.owner.get_username()

    @admin.display(description="Conversation")
    def conversation_link(self, row: Message) -> SafeString | str:
        return _link(Conversation, row.conversation_id)

    @admin.display(description="Answers to")
    def parent_link(self, row: Message) -> SafeString | str:
        return _link(Message, row.parent_id)


@admin.register(Generation)
class GenerationAdmin(FrameAdmin):
    text_columns = ("request", "error_message")  # this may quote a message, or come from a file that was imported
    owner_path = "user"
    shown = (
        *("id", "user", "source", "message_link", "model", "status", "stop_requested", "worker"),
        *("finish_reason", "cut", "error_code", "is_retryable"),
        *("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "decode_seconds"),
        *("created_at", "ended_at"),
    )
    list_display = (
        "id",
        "user",
        "source",
        "model",
        "status",
        "error_code",
        "completion_tokens",
        "created_at",
        "ended_at",
    )
    filters = ("status", "source", "created_at")
    more_filters = ("model", "error_code", "worker")
    list_select_related = ("user",)
    raw_id_fields = ("user", "message")
    ordering = ("-id",)

    @admin.display(description="Message")
    def message_link(self, row: Generation) -> SafeString | str:
        return _link(Message, row.message_id)


@admin.register(Feedback)
class FeedbackAdmin(FrameAdmin):
    text_columns = ("comment",)
    owner_path = "message__conversation__owner"
    conversation_path = "message.conversation_id"
    shown = ("id", "owner", "rating", "reason", "is_reported", "model_name", "message_link", "created_at")
    list_display = ("id", "owner", "rating", "reason", "is_reported", "model_name", "created_at")
    filters = ("rating", "reason", "is_reported", "created_at")
    raw_id_fields = ("message",)
    ordering = ("-created_at",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Feedback]:
        rows: QuerySet[Feedback] = super().get_queryset(request)
        columns = [f"message__{name}" for name in MessageAdmin.text_columns]
        columns += [f"message__conversation__{name}" for name in ConversationAdmin.text_columns]
        related = ("message__conversation__owner", "message__generation")
        return rows.select_related(*related).defer(*self.text_columns, *columns, "message__generation__request")

    @admin.display(description="Owner")
    def owner(self, row: Feedback) -> str:
        return row.message.conversation.owner.get_username()

    @admin.display(description="Model")
    def model_name(self, row: Feedback) -> str:
        generation = getattr(row.message, "generation", None)
        return generation.model if generation else "-"

    @admin.display(description="Message")
    def message_link(self, row: Feedback) -> SafeString | str:
        return _link(Message, row.message_id)


@admin.register(Attachment)
class AttachmentAdmin(FrameAdmin):
    """Its name is what somebody wrote, too."""

    text_columns = ("name", "text")
    owner_path = "owner"
    shown = ("id", "owner", "message_link", "media_type", "num_bytes", "num_tokens", "created_at")
    list_display = ("id", "owner", "media_type", "num_bytes", "num_tokens", "created_at")
    filters = ("created_at",)
    list_select_related = ("owner",)
    raw_id_fields = ("owner", "message")
    ordering = ("-id",)

    @admin.display(description="Message")
    def message_link(self, row: Attachment) -> SafeString | str:
        return _link(Message, row.message_id)
