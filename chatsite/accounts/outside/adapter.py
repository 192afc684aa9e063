"""What allauth asks about outside accounts: which providers there are, whom an account is here, what to say when not.

An outside account is bound to the person who made their account with it, or who connected it while signed in. It never
takes over an account by its e-mail address, except where the operator said so (`OIDC_LINK_BY_EMAIL`) and both sides
have verified it; an address that the provider has not verified is not even kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import requests
import structlog
from allauth.account.internal.userkit import filter_users_by_email
from allauth.account.models import EmailAddress
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount, SocialApp, SocialLogin
from allauth.socialaccount.providers.base import AuthError, Provider
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import User
from chatsite.accounts.outside import naming
from chatsite.outside_config import OPENID_ID, OutsideConfig

log = structlog.get_logger(__name__)

KEPT = ("iss", "sub", "login", "preferred_username", "name", "email", "email_verified", "groups")  # of what is told
SAVE_TRIES = 5  # each new user name may be taken while it is saved
AWAY_RETRY_SECONDS = 30

LAST_WAY = _("This is your only way to sign in. Set a password or connect another account first.")


class OutsideAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth has no types
    error_messages = {
        **DefaultSocialAccountAdapter.error_messages,
        "no_password": LAST_WAY,
        "disconnect_last": LAST_WAY,
    }

    # -- which providers there are

    def list_apps(
        self, request: HttpRequest | None, provider: str | None = None, client_id: str | None = None
    ) -> list[SocialApp]:
        """By the environment alone; rows of `SocialApp` are not read."""
        return [
            app
            for app in _apps(settings.SMOLFLEET.outside)
            if provider in (None, app.provider, app.provider_id) and client_id in (None, app.client_id)
        ]

    def get_app(self, request: HttpRequest | None, provider: str, client_id: str | None = None) -> SocialApp:
        """
        Raises:
            Http404: that provider is switched off; its addresses are always there.
        """
        try:
            return super().get_app(request, provider, client_id=client_id)
        except SocialApp.DoesNotExist:
            raise Http404(f"No sign-in with {provider} here.") from None

    # -- whom an account is here

    def populate_user(self, request: HttpRequest, sociallogin: SocialLogin, data: Mapping[str, Any]) -> User:
        """A suggestion from the claims. Of the addresses the first that is verified is kept, of the rest nothing."""
        verified = [address for address in sociallogin.email_addresses if address.verified][:1]
        sociallogin.email_addresses = verified
        sociallogin.account.extra_data = _printable(
            {name: value for name, value in sociallogin.account.extra_data.items() if name in KEPT}
        )
        email = verified[0].email if verified else ""
        user: User = super().populate_user(request, sociallogin, _printable({**data, "email": email}))
        user.username = naming.free(self.wanted_name(sociallogin))
        return user

    def wanted_name(self, sociallogin: SocialLogin) -> str:
        """What the person would be called if nobody else were: it may be taken."""
        told = sociallogin.account.extra_data
        emails = [address.email for address in sociallogin.email_addresses]
        return naming.wanted(told.get("preferred_username"), told.get("login"), *emails, told.get("name"))

    def taken_email(self, sociallogin: SocialLogin) -> str:
        """The person's verified address where an account here has it already, verified or not; else ""."""
        emails: list[str] = [address.email for address in sociallogin.email_addresses]
        return next((email for email in emails if filter_users_by_email(email)), "")

    def authenticate_by_email(self, sociallogin: SocialLogin) -> tuple[User, str] | None:
        """Whose account the address makes it, where the operator wants that; both sides must have verified it."""
        openid = settings.SMOLFLEET.outside.openid
        if sociallogin.account.provider != OPENID_ID or openid is None or not openid.link_by_email:
            return None
        for address in sociallogin.email_addresses:
            known = EmailAddress.objects.filter(email=address.email.lower(), verified=True).first()
            if address.verified and known:
                return known.user, known.email
        return None

    # -- new people

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        """Through OpenID by its own setting, through GitHub as everywhere: anybody can have an account there."""
        config = settings.SMOLFLEET
        if sociallogin.account.provider == OPENID_ID:
            is_open = config.outside.openid is not None and config.outside.openid.sign_up
        else:
            is_open = config.sign_up_open
        if not is_open:
            raise ImmediateHttpResponse(render(request, "account/signup_closed.html", status=403))
        return True

    def is_auto_signup_allowed(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        """Without a question unless the name is taken, or an account here has the address: it may be theirs."""
        return naming.is_free(self.wanted_name(sociallogin)) and not self.taken_email(sociallogin)

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        """The new person, under the name they chose or one that is free. In another window of theirs they may have
        become one at the same moment; then it is that account."""
        user: User = sociallogin.user
        if form is not None:
            user.username = form.cleaned_data["username"]
        if self.taken_email(sociallogin):
            user.email, sociallogin.email_addresses = "", []
        for _try in range(SAVE_TRIES):
            try:
                with transaction.atomic():
                    sociallogin.save(request)
                return user
            except IntegrityError:
                account = sociallogin.account
                known = SocialAccount.objects.filter(provider=account.provider, uid=account.uid).first()
                if known:
                    user = sociallogin.user = known.user
                    sociallogin.account = known
                    return user
                user.username = naming.free(user.username)
        raise IntegrityError(f"no user name was free for long enough: {user.username}")

    # -- letting go

    def validate_disconnect(self, account: SocialAccount, accounts: QuerySet[SocialAccount]) -> None:
        """
        Raises:
            ValidationError: nothing else would let this person in again.
        """
        usable = [provider.sub_id for provider in self.list_providers(self.request)]
        has_other = accounts.exclude(pk=account.pk).filter(provider__in=usable).exists()
        has_password = settings.SMOLFLEET.password_sign_in and account.user.has_usable_password()
        if not has_other and not has_password:
            raise self.validation_error("disconnect_last")

    # -- when it fails

    def get_requests_session(self) -> requests.Session:
        """What providers are asked with: an answer of 500 or more is no answer, wherever it comes."""
        session: requests.Session = super().get_requests_session()
        session.hooks["response"].append(_raise_for_server_error)
        return session

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Provider,
        error: str | None = None,
        exception: Exception | None = None,
        extra_context: Mapping[str, Any] | None = None,
    ) -> None:
        """A page that says what happened; the reason in full is for the log, where the operator finds it.

        Raises:
            ImmediateHttpResponse: always, but where the person declined: allauth has a page for that.
        """
        said = request.GET.get("error", "")[:100]
        log.warning(
            "outside sign-in failed", provider=provider.sub_id, error=error, said=said, reason=repr(exception)[:500]
        )
        if error == AuthError.CANCELLED:
            return
        if _is_away(exception):
            reason, status = "away", 503
        elif exception is not None or said:
            reason, status = "refused", 401
        else:
            reason, status = "lost", 400  # no such state in this session
        page = render(
            request,
            "socialaccount/authentication_error.html",
            {"reason": reason, "provider_name": provider.name},
            status=status,
        )
        if reason == "away":
            page["Retry-After"] = str(AWAY_RETRY_SECONDS)
        raise ImmediateHttpResponse(page)


def _apps(config: OutsideConfig) -> list[SocialApp]:
    apps = []
    if openid := config.openid:
        apps.append(
            SocialApp(
                provider="openid_connect",
                provider_id=OPENID_ID,
                name=openid.name,
                client_id=openid.client_id,
                secret=openid.client_secret,
                settings={"server_url": openid.issuer, "scope": openid.scopes, "oauth_pkce_enabled": True},
            )
        )
    if github := config.github:
        apps.append(
            SocialApp(
                provider="github",
                name=github.name,
                client_id=github.client_id,
                secret=github.client_secret,
                settings={"scope": ["read:user", "user:email"], "oauth_pkce_enabled": True},
            )
        )
    return apps


def _printable(told: Mapping[str, Any]) -> dict[str, Any]:
    return {name: naming.printable(value) if isinstance(value, str) else value for name, value in told.items()}


def _raise_for_server_error(response: requests.Response, **_: object) -> None:
    if response.status_code >= 500:
        response.raise_for_status()


def _is_away(exception: Exception | None) -> bool:
    """Whether the provider cannot be reached, or cannot answer for reasons of its own."""
    if isinstance(exception, requests.HTTPError):
        return exception.response is not None and exception.response.status_code >= 500
    return isinstance(exception, (requests.ConnectionError, requests.Timeout))
