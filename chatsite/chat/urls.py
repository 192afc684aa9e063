"""Routes of the chat's pages and fragments. Streams are consumers: see `routing`."""

from __future__ import annotations

from django.urls import path

from chatsite.chat import message_views, sidebar_views, views

app_name = "chat"

urlpatterns = [
    path("", views.home, name="home"),
    path("chat/", views.start, name="start"),
    path("chat/sidebar/", sidebar_views.sidebar, name="sidebar"),
    path("chat/<uuid:conversation_id>/", views.conversation, name="conversation"),
    path("chat/<uuid:conversation_id>/earlier/", views.earlier, name="earlier"),
    path("chat/<uuid:conversation_id>/send/", views.send, name="send"),
    path("chat/<uuid:conversation_id>/rename/", sidebar_views.rename, name="rename"),
    path("chat/<uuid:conversation_id>/delete/", sidebar_views.delete, name="delete"),
    path("chat/messages/<uuid:message_id>/", message_views.message, name="message"),
    path("chat/messages/<uuid:message_id>/retry/", message_views.retry, name="retry"),
    path("chat/messages/<uuid:message_id>/select/", message_views.select, name="select"),
    path("chat/generations/<uuid:generation_id>/stop/", message_views.stop, name="stop"),
]
