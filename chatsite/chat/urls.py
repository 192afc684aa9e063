"""Routes of the chat's pages and fragments. Streams are consumers: see `routing`."""

from __future__ import annotations

from django.urls import path

from chatsite.chat.views import conversation, feedback, files, message, queue, search, sidebar, temporary

app_name = "chat"

urlpatterns = [
    path("", conversation.home, name="home"),
    path("chat/", conversation.start, name="start"),
    path("chat/quote/", conversation.quote, name="quote"),
    path("chat/sidebar/", sidebar.sidebar, name="sidebar"),
    path("chat/bulk/", sidebar.bulk, name="bulk"),
    path("chat/search/", search.search, name="search"),
    path("chat/messages/<uuid:message_id>/show/", search.show, name="show"),
    path("chat/temporary/", temporary.chat, name="temporary"),
    path("chat/temporary/<uuid:generation_id>/", temporary.answer, name="temporary-answer"),
    path("chat/temporary/<uuid:generation_id>/seen/", temporary.seen, name="temporary-seen"),
    path("chat/files/", files.upload, name="upload"),
    path("chat/files/<uuid:attachment_id>/", files.view, name="file"),
    path("chat/files/<uuid:attachment_id>/encoding/", files.read_again, name="file-encoding"),
    path("chat/files/<uuid:attachment_id>/remove/", files.remove, name="file-remove"),
    path("chat/<uuid:conversation_id>/files/", files.upload, name="upload"),
    path("chat/messages/<uuid:message_id>/feedback/", feedback.give, name="feedback"),
    path("chat/<uuid:conversation_id>/", conversation.conversation, name="conversation"),
    path("chat/<uuid:conversation_id>/earlier/", conversation.earlier, name="earlier"),
    path("chat/<uuid:conversation_id>/send/", conversation.send, name="send"),
    path("chat/<uuid:conversation_id>/tune/", conversation.tune, name="tune"),
    path("chat/<uuid:conversation_id>/news/", queue.news, name="news"),
    path("chat/<uuid:conversation_id>/queue/<uuid:entry_id>/", queue.edit, name="queue-edit"),
    path("chat/<uuid:conversation_id>/queue/<uuid:entry_id>/remove/", queue.remove, name="queue-remove"),
    path("chat/<uuid:conversation_id>/queue/<uuid:entry_id>/now/", queue.send_now, name="queue-now"),
    path("chat/<uuid:conversation_id>/menu/", sidebar.menu, name="menu"),
    path("chat/<uuid:conversation_id>/arrange/", sidebar.arrange, name="arrange"),
    path("chat/<uuid:conversation_id>/rename/", sidebar.rename, name="rename"),
    path("chat/<uuid:conversation_id>/delete/", sidebar.delete, name="delete"),
    path("chat/messages/<uuid:message_id>/", message.message, name="message"),
    path("chat/messages/<uuid:message_id>/retry/", message.retry, name="retry"),
    path("chat/messages/<uuid:message_id>/again/", message.again, name="again"),
    path("chat/messages/<uuid:message_id>/edit/", message.edit, name="edit"),
    path("chat/messages/<uuid:message_id>/resume/", message.resume, name="resume"),
    path("chat/messages/<uuid:message_id>/remove/", message.remove, name="remove"),
    path("chat/messages/<uuid:message_id>/fork/", message.fork, name="fork"),
    path("chat/messages/<uuid:message_id>/more/", message.more, name="more"),
    path("chat/messages/<uuid:message_id>/select/", message.select, name="select"),
    path("chat/generations/<uuid:generation_id>/stop/", message.stop, name="stop"),
]
