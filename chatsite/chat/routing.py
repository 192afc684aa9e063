"""Routes of the chat's streams. Ids are plain strings here, so that a malformed one is the consumer's 404."""

from __future__ import annotations

from django.urls import path

from chatsite.chat.streams.sse import GenerationEvents, ListEvents
from chatsite.chat.streams.websocket import ConversationSocket

http_urlpatterns = [
    path("chat/generations/<str:generation_id>/events", GenerationEvents.as_asgi()),
    path("chat/live/", ListEvents.as_asgi()),
]
websocket_urlpatterns = [path("ws/chat/<str:conversation_id>", ConversationSocket.as_asgi())]
