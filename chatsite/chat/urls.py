"""Routes of the chat's pages and fragments. Streams are consumers: see `routing`."""

from __future__ import annotations

from django.urls import path

from chatsite.chat import views

app_name = "chat"

urlpatterns = [
    path("", views.home, name="home"),
    path("chat/", views.start, name="start"),
    path("chat/sidebar/", views.sidebar, name="sidebar"),
    path("chat/<uuid:conversation_id>/", views.conversation, name="conversation"),
    path("chat/<uuid:conversation_id>/earlier/", views.earlier, name="earlier"),
    path("chat/<uuid:conversation_id>/send/", views.send, name="send"),
    path("chat/<uuid:conversation_id>/rename/", views.rename, name="rename"),
    path("chat/<uuid:conversation_id>/delete/", views.delete, name="delete"),
    path("chat/messages/<uuid:message_id>/", views.message, name="message"),
    path("chat/messages/<uuid:message_id>/retry/", views.retry, name="retry"),
    path("chat/messages/<uuid:message_id>/select/", views.select, name="select"),
    path("chat/generations/<uuid:generation_id>/stop/", views.stop, name="stop"),
]
