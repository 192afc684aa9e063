"""A person's sessions: where each was last used, and how they end. The list itself is kept by allauth.

A session that is not in the list could not be ended from it, so the middleware adds whatever allauth did not see begin.
Streams that are open in a session end with it (`revocation`). Called by the pages of one's own account, by the
admin, and by allauth; knows nothing of what people do in their sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import timedelta

from allauth.usersessions.adapter import DefaultUserSessionsAdapter
from allauth.usersessions.models import UserSession
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.dispatch import Signal
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from chatsite.accounts.models import User

SEEN_AGAIN_AFTER = timedelta(minutes=1)  # `last_seen_at` is written no more often

# Somebody ended sessions. `user`: whose they were; `number`: how many; `sender`: UserSession. Not sent for signing out.
sessions_ended = Signal()


class SessionsAdapter(DefaultUserSessionsAdapter):  # type: ignore[misc]  # allauth has no types
    def end_sessions(self, sessions: Iterable[UserSession]) -> None:
        """End these. allauth asks for it when somebody ends all of theirs but the one they are in."""
        end(list(sessions))


def end(sessions: Collection[UserSession]) -> None:
    """End these at once, and tell `sessions_ended` of each person whose they were."""
    for session in sessions:
        session.end()
    for user in {session.user for session in sessions}:
        sessions_ended.send(UserSession, user=user, number=sum(session.user == user for session in sessions))


def end_all(users: Collection[User]) -> int:
    """End every session of these people, those too that no list has. Returns how many there were."""
    listed = list(UserSession.objects.filter(user__in=users).select_related("user"))
    end(listed)
    return len(listed) + _end_unlisted(users)


def _end_unlisted(users: Collection[User]) -> int:
    """Sessions that were not used since lists are kept. Whose they are is known to nobody but they themselves."""
    by_id = {str(user.pk): user for user in users}
    num_ended = dict.fromkeys(by_id, 0)
    for session in Session.objects.exclude(session_key__in=UserSession.objects.values("session_key")).iterator():
        user_id = session.get_decoded().get(SESSION_KEY)
        if user_id in by_id:
            session.delete()
            num_ended[user_id] += 1
    for user_id, number in num_ended.items():
        if number:
            sessions_ended.send(UserSession, user=by_id[user_id], number=number)
    return sum(num_ended.values())


class LastSeenMiddleware:
    """Notes from which browser and address a session was last used. Behind allauth's own, whose context it needs.

    Afterwards, and only where the page looked who asks: some are the same for everybody.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        if request.session.accessed and request.session.session_key and request.user.is_authenticated:
            rows = UserSession.objects.filter(session_key=request.session.session_key, user_id=request.user.pk)
            seen_at = rows.values_list("last_seen_at", flat=True).first()
            if seen_at is None or seen_at < timezone.now() - SEEN_AGAIN_AFTER:
                UserSession.objects.create_from_request(request)
        return response
