"""Routes of the chat's pages and fragments. Streams are consumers: see `routing`."""

from __future__ import annotations

from django.urls import path

from chatsite.chat import (
    feedback_views,
    file_views,
    message_views,
    queue_views,
    search_views,
    sidebar_views,
    temporary_views,
    views,
)

app_name = "chat"

urlpatterns = [
    path("", views.home, name="home"),
    path("chat/", views.start, name="start"),
    path("chat/quote/", views.quote, name="quote"),
    path("chat/sidebar/", sidebar_views.sidebar, name="sidebar"),
    path("chat/bulk/", sidebar_views.bulk, name="bulk"),
    path("chat/search/", search_views.search, name="search"),
    path("chat/messages/<uuid:message_id>/show/", search_views.show, name="show"),
    path("chat/temporary/", temporary_views.chat, name="temporary"),
    path("chat/temporary/<uuid:generation_id>/", temporary_views.answer, name="temporary-answer"),
    path("chat/temporary/<uuid:generation_id>/seen/", temporary_views.seen, name="temporary-seen"),
    path("chat/files/", file_views.upload, name="upload"),
    path("chat/files/<uuid:attachment_id>/", file_views.view, name="file"),
    path("chat/files/<uuid:attachment_id>/encoding/", file_views.read_again, name="file-encoding"),
    path("chat/files/<uuid:attachment_id>/remove/", file_views.remove, name="file-remove"),
    path("chat/<uuid:conversation_id>/files/", file_views.upload, name="upload"),
    path("chat/messages/<uuid:message_id>/feedback/", feedback_views.give, name="feedback"),
    path("chat/<uuid:conversation_id>/", views.conversation, name="conversation"),
    path("chat/<uuid:conversation_id>/earlier/", views.earlier, name="earlier"),
    path("chat/<uuid:conversation_id>/send/", views.send, name="send"),
    path("chat/<uuid:conversation_id>/tune/", views.tune, name="tune"),
    path("chat/<uuid:conversation_id>/news/", queue_views.news, name="news"),
    path("chat/<uuid:conversation_id>/queue/<uuid:entry_id>/", queue_views.edit, name="queue-edit"),
    path("chat/<uuid:conversation_id>/queue/<uuid:entry_id>/remove/", queue_views.remove, name="queue-remove"),
    path("chat/<uuid:conversation_id>/queue/<uuid:entry_id>/now/", queue_views.send_now, name="queue-now"),
    path("chat/<uuid:conversation_id>/menu/", sidebar_views.menu, name="menu"),
    path("chat/<uuid:conversation_id>/arrange/", sidebar_views.arrange, name="arrange"),
    path("chat/<uuid:conversation_id>/rename/", sidebar_views.rename, name="rename"),
    path("chat/<uuid:conversation_id>/delete/", sidebar_views.delete, name="delete"),
    path("chat/messages/<uuid:message_id>/", message_views.message, name="message"),
    path("chat/messages/<uuid:message_id>/retry/", message_views.retry, name="retry"),
    path("chat/messages/<uuid:message_id>/again/", message_views.again, name="again"),
    path("chat/messages/<uuid:message_id>/edit/", message_views.edit, name="edit"),
    path("chat/messages/<uuid:message_id>/resume/", message_views.resume, name="resume"),
    path("chat/messages/<uuid:message_id>/remove/", message_views.remove, name="remove"),
    path("chat/messages/<uuid:message_id>/fork/", message_views.fork, name="fork"),
    path("chat/messages/<uuid:message_id>/more/", message_views.more, name="more"),
    path("chat/messages/<uuid:message_id>/select/", message_views.select, name="select"),
    path("chat/generations/<uuid:generation_id>/stop/", message_views.stop, name="stop"),
]
