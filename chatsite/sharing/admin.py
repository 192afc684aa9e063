"""Links in Django's admin: who shares with whom and until when. Neither what a link shows nor where it is."""

from __future__ import annotations

from django.contrib import admin

from chatsite.chat.admin import FrameAdmin
from chatsite.sharing.models import Share


@admin.register(Share)
class ShareAdmin(FrameAdmin):
    text_columns = ("title", "snapshot", "token")
    owner_path = "owner"
    shown = ("id", "owner", "scope", "has_thoughts", "created_at", "updated_at", "expires_at", "revoked_at")
    list_display = ("id", "owner", "scope", "created_at", "updated_at", "expires_at", "revoked_at")
    filters = ("scope", "created_at")
    list_select_related = ("owner",)
    raw_id_fields = ("owner",)
    ordering = ("-id",)
