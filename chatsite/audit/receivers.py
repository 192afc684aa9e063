"""What the log hears of by itself: sign-ins, and what people do on the pages of their own account.

Each deed is told by one signal alone, the one that is sent whatever way it is done. Django tells of sign-ins wherever
they happen; allauth of addresses and recovery codes; rows of all else, see `rows`. Connected once, by the app's
`ready`.
"""

from __future__ import annotations

from typing import Any

from allauth.account import signals as account
from allauth.account.authentication import get_authentication_records
from allauth.account.models import EmailAddress
from allauth.mfa import signals as factors
from django.contrib.auth.models import Group
from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest

from chatsite.accounts.models import User
from chatsite.accounts.rights import change_refused
from chatsite.accounts.sessions import sessions_ended
from chatsite.audit import log, rows
from chatsite.audit.models import Action


def connect() -> None:
    for signal, receiver in (
        (user_logged_in, signed_in),
        (user_login_failed, password_refused),
        (user_logged_out, signed_out),
        (factors.authentication_failed, factor_refused),
        (factors.authenticator_reset, codes_made_anew),
        (sessions_ended, ended),
        (change_refused, refused),
        (account.email_added, address_added),
        (account.email_confirmed, address_confirmed),
        (account.email_changed, address_made_primary),
        (account.email_removed, address_removed),
    ):
        signal.connect(receiver, dispatch_uid=f"audit {receiver.__name__}")
    rows.connect()


# -- in and out


def signed_in(request: HttpRequest, user: User, **_: Any) -> None:
    methods = [str(each["method"]) for each in get_authentication_records(request, user)]
    log.record(Action.SIGNED_IN, actor=user, detail={"methods": methods} if methods else None)


def signed_out(user: User | None, **_: Any) -> None:
    if user is not None and User.objects.filter(pk=user.pk).exists():  # else it was just deleted, which is recorded
        log.record(Action.SIGNED_OUT, actor=user)


def password_refused(credentials: dict[str, Any], **_: Any) -> None:
    """Also where somebody who is signed in must show again who they are. The name is as it was typed."""
    name = str(credentials.get("username") or credentials.get("email") or "").replace("\0", "")
    _refused("password", _account_named(name), name)


def factor_refused(user: User, **_: Any) -> None:
    _refused("second factor", user)


def _refused(step: str, person: User | None, name: str = "") -> None:
    log.record(Action.SIGN_IN_FAILED, subject=person, subject_name=name, detail={"step": step})
    transaction.on_commit(log.FAILED_SIGN_INS.labels(step).inc, robust=True)


def _account_named(name: str) -> User | None:
    """As allauth looks for it, whatever the case of the letters; None for two that differ in that alone."""
    found = list(User.objects.filter(username__iexact=name)[:2]) if name else []
    exact = [user for user in found if user.username == name]
    return (exact or found)[0] if len(exact or found) == 1 else None


def ended(user: User, number: int, **_: Any) -> None:
    log.record_about(user, Action.SESSION_ENDED, detail={"number": number})


def refused(row: Model, person: User | None, **_: Any) -> None:
    """Not with the row's own words: an address or a name may be a person's. A group's name is the site's."""
    name = row.name if isinstance(row, Group) else row.pk
    target = "" if row == person else f"{row._meta.verbose_name} {name}"
    log.record(Action.CHANGE_REFUSED, subject=person, target=target)


# -- one's account


def codes_made_anew(user: User, **_: Any) -> None:
    log.record_about(user, Action.FACTOR_RESET)


def address_added(user: User, email_address: EmailAddress, **_: Any) -> None:
    _address(user, "added", email_address.email)


def address_confirmed(email_address: EmailAddress, **_: Any) -> None:
    _address(email_address.user, "confirmed", email_address.email)


def address_made_primary(
    user: User, from_email_address: EmailAddress | None, to_email_address: EmailAddress, **_: Any
) -> None:
    before = from_email_address.email if from_email_address else ""
    _address(user, "made primary", [before, to_email_address.email])


def address_removed(user: User, email_address: EmailAddress, **_: Any) -> None:
    _address(user, "removed", email_address.email)


def _address(user: User, change: str, email: str | list[str]) -> None:
    log.record_about(user, Action.EMAIL, detail={"change": change, "personal": {"email": email}})
