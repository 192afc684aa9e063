"""What allauth asks about this site: whether a stranger may open an account, and whether somebody must show again who
they are; and its hooks around signing in, where tries are counted. Nothing else differs from its defaults.
"""

from __future__ import annotations

from typing import Any

import structlog
from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from chatsite.accounts import attempts, known_browsers
from chatsite.accounts.models import User

log = structlog.get_logger(__name__)


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "no_passwords": _("Nobody signs in with a password here. Use the other way to sign in."),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """By the operator's setting; a closed site answers with its own page, and people are added by an admin."""
        return bool(settings.SMOLFLEET.offers_sign_up)

    def pre_authenticate(self, request: HttpRequest, **credentials: Any) -> None:
        """Says in words what `passwords.PasswordGate` would refuse anyway, and counts the try: allauth's own counts
        would block everybody behind an address, and any account by its name."""
        if not settings.SMOLFLEET.password_sign_in:
            raise self.validation_error("no_passwords")
        try:
            self._try = attempts.begin(request, credentials.get("username", ""))
        except attempts.TooManyTries as refused:
            request.sign_in_wait_seconds = refused.seconds  # type: ignore[attr-defined]  # for the view's answer
            raise ValidationError(_wait_sentence(refused.seconds), code="too_many_login_attempts") from None

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        user: User | None = super().authenticate(request, **credentials)
        if user is not None:
            self._try.right()
        return user

    def post_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse:
        response: HttpResponse = super().post_login(request, user, **kwargs)
        known_browsers.remember(request, response, user)
        return response

    def is_reauthentication_required(self, *, app: str, **kwargs: Any) -> bool:
        """Never of who has nothing to show: they came by another site's sign-in, and could else set up no factor."""
        is_possible = bool(self.get_reauthentication_methods(self.request.user))
        return is_possible and bool(super().is_reauthentication_required(app=app, **kwargs))

    def send_notification_mail(self, template_prefix: str, user: Any, *args: Any, **kwargs: Any) -> None:
        """Tell of a deed that is done. A mail server that is away is an operator's matter and undoes nothing."""
        try:
            super().send_notification_mail(template_prefix, user, *args, **kwargs)
        except OSError:  # those of SMTP are of this kind too
            log.exception("notice not sent", user_id=str(user.pk), notice=template_prefix)


def _wait_sentence(seconds: int) -> str:
    if seconds < 120:
        sentence = ngettext(
            "Too many tries failed. The next one may be in %(number)d second.",
            "Too many tries failed. The next one may be in %(number)d seconds.",
            seconds,
        )
        return sentence % {"number": seconds}
    minutes = -(-seconds // 60)
    sentence = ngettext(
        "Too many tries failed. The next one may be in %(number)d minute.",
        "Too many tries failed. The next one may be in %(number)d minutes.",
        minutes,
    )
    return sentence % {"number": minutes}
