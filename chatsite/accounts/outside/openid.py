"""The OpenID Connect provider: what it must say of itself and of a person before it is believed.

allauth walks the way (state, PKCE, code for tokens). Here its steps are made strict: the provider names itself as
`OIDC_ISSUER` does, the ID token is signed with a key it publishes, for this client and for this very sign-in (nonce),
and userinfo speaks of the same person. Anything else is `Distrusted`, and a page says so. No token is kept.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, cast

import jwt
import requests
from allauth.socialaccount import app_settings
from allauth.socialaccount.adapter import get_adapter
from allauth.socialaccount.helpers import render_authentication_error
from allauth.socialaccount.models import SocialApp, SocialLogin, SocialToken
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView, OAuth2LoginView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from allauth.utils import build_absolute_uri
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from chatsite.accounts.outside import groups
from chatsite.outside_config import OPENID_ID

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LEEWAY_SECONDS = 60  # between the provider's clock and ours
WELL_KNOWN = "/.well-known/openid-configuration"
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
KEPT_CLAIMS = ("iss", "sub", "preferred_username", "nickname", "name", "given_name", "family_name", "email")


class Distrusted(OAuth2Error):  # type: ignore[misc]  # allauth has no types
    """The provider, or what came in its name, is not to be believed. The sentence is for the log."""


class OpenIDAdapter(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    nonce = ""  # of this sign-in; the callback knows it from the session

    @property
    def openid_config(self) -> dict[str, Any]:
        """What the provider says of itself, asked once per request.

        Raises:
            RequestException: it cannot be reached, or answers with an error.
            Distrusted: the answer is none, or it calls itself something else than `OIDC_ISSUER`.
        """
        if not hasattr(self, "_config"):
            issuer = self.get_provider().app.settings["server_url"]
            self._config = _described(_fetch(issuer.rstrip("/") + WELL_KNOWN), issuer)
        return self._config

    def get_callback_url(self, request: HttpRequest, app: SocialApp) -> str:
        return str(build_absolute_uri(request, reverse("openid_connect_callback")))

    def get_access_token_data(
        self, request: HttpRequest, app: SocialApp, client: Any, pkce_code_verifier: str | None = None
    ) -> dict[str, Any]:
        try:
            data = super().get_access_token_data(request, app, client, pkce_code_verifier=pkce_code_verifier)
        except (KeyError, requests.JSONDecodeError) as error:  # no content type; not the JSON it is said to be
            raise Distrusted(f"The token endpoint's answer cannot be read: {error!r}") from error
        if not isinstance(data.get("id_token"), str) or not isinstance(data["access_token"], str):
            raise Distrusted("The token endpoint gave no ID token.")
        return data  # type: ignore[no-any-return]

    def parse_token(self, data: dict[str, Any]) -> SocialToken:
        return SocialToken(token=data["access_token"])

    def complete_login(self, request: HttpRequest, app: SocialApp, token: SocialToken, **kwargs: Any) -> SocialLogin:
        """Whom the provider vouches for.

        Raises:
            Distrusted, RequestException
        """
        claims = self._identity(app, kwargs["response"]["id_token"])
        if "userinfo_endpoint" in self.openid_config:
            about = _fetch(self.profile_url, Authorization=f"Bearer {token.token}")
            if about.get("sub") != claims["sub"]:
                raise Distrusted("Userinfo speaks of another person than the ID token.")
            claims = {**claims, **about, "iss": claims["iss"]}
        kept: dict[str, Any] = {name: claims[name] for name in KEPT_CLAIMS if isinstance(claims.get(name), str)}
        kept["email_verified"] = claims.get("email_verified") in (True, "true")
        config = settings.SMOLFLEET.outside.openid
        if config and config.groups_claim:
            kept["groups"] = groups.named(claims, config.groups_claim)
        return self.get_provider().sociallogin_from_response(request, kept)

    def _identity(self, app: SocialApp, id_token: str) -> dict[str, Any]:
        """The claims of an ID token that is signed, current, of this provider, for this client and this sign-in."""
        config = self.openid_config
        try:
            claims: dict[str, Any] = jwt.decode(
                id_token,
                key=_signing_key(jwt.get_unverified_header(id_token), _fetch(config["jwks_uri"])),
                algorithms=ALGORITHMS,
                audience=app.client_id,
                issuer=config["issuer"],
                leeway=LEEWAY_SECONDS,
                options={"require": ["iss", "sub", "aud", "exp", "iat"]},
            )
        except jwt.PyJWTError as error:
            raise Distrusted(f"The ID token does not hold: {error}") from error
        if not claims["sub"].isprintable():
            raise Distrusted("The ID token's subject is no name.")
        if claims.get("azp", app.client_id) != app.client_id:
            raise Distrusted("The ID token was given to another client.")
        if not self.nonce or claims.get("nonce") != self.nonce:
            raise Distrusted("The ID token belongs to another sign-in.")
        return claims


class OpenIDProvider(OpenIDConnectProvider):  # type: ignore[misc]
    oauth2_adapter_class = OpenIDAdapter
    package = "chatsite.accounts.outside"  # whose `urls` are ours

    def redirect(self, request: HttpRequest, process: str, *args: Any, **kwargs: Any) -> HttpResponse:
        """To the provider, or to a page that says why not: it is asked for its addresses first."""
        nonce = secrets.token_urlsafe(24)
        auth_params = {**(kwargs.pop("auth_params", None) or {}), "nonce": nonce}
        try:
            return cast(
                HttpResponse,
                super().redirect(request, process, *args, auth_params=auth_params, nonce=nonce, **kwargs),
            )
        except (OAuth2Error, requests.RequestException) as error:
            return cast(HttpResponse, render_authentication_error(request, self, exception=error))

    def get_scope_from_request(self, request: HttpRequest) -> list[str]:
        return list(self.get_scope())  # no address of ours may ask for more than the operator did

    def get_auth_params_from_request(self, request: HttpRequest, action: str) -> dict[str, str]:
        return dict(self.get_auth_params())

    def get_login_url(self, request: HttpRequest, **query: str) -> str:
        return reverse("openid_connect_login", query=query or None)

    def extract_uid(self, data: Mapping[str, Any]) -> str:
        """A subject means something at its issuer alone, so that a change of `OIDC_ISSUER` makes nobody another."""
        uid = f"{data['iss']} {data['sub']}"
        return uid if len(uid) <= app_settings.UID_MAX_LENGTH else hashlib.sha256(uid.encode()).hexdigest()


class CallbackView(OAuth2CallbackView):  # type: ignore[misc]
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return cast(HttpResponse, super().dispatch(request, *args, **kwargs))
        except (OAuth2Error, requests.RequestException) as error:  # it is asked for its addresses before allauth looks
            provider = self.adapter.get_provider()
            return cast(HttpResponse, render_authentication_error(request, provider, exception=error))

    def _get_state(self, request: HttpRequest, provider: OpenIDProvider) -> tuple[Any, Any]:
        state, refusal = super()._get_state(request, provider)
        self.adapter.nonce = (state or {}).get("nonce", "")
        return state, refusal


def login(request: HttpRequest) -> HttpResponse:
    return cast(HttpResponse, OAuth2LoginView.adapter_view(OpenIDAdapter(request, OPENID_ID))(request))


def callback(request: HttpRequest) -> HttpResponse:
    return cast(HttpResponse, CallbackView.adapter_view(OpenIDAdapter(request, OPENID_ID))(request))


def _fetch(url: str, **headers: str) -> dict[str, Any]:
    with get_adapter().get_requests_session() as session:
        response = session.get(url, headers=headers)
        response.raise_for_status()
        try:
            data = response.json()
        except requests.JSONDecodeError as error:
            raise Distrusted(f"{url} does not answer with JSON.") from error
    if not isinstance(data, dict):
        raise Distrusted(f"{url} does not answer with an object.")
    return data


def _described(config: dict[str, Any], issuer: str) -> dict[str, Any]:
    named = config.get("issuer")
    if not isinstance(named, str) or named.rstrip("/") != issuer.rstrip("/"):
        raise Distrusted(f"OIDC_ISSUER is {issuer!r}, but the provider there calls itself {named!r}.")
    given = [name for name in (*ENDPOINTS, "userinfo_endpoint") if name in ENDPOINTS or name in config]
    for name in given:
        schemes = ("https://",) if issuer.startswith("https://") else ("https://", "http://")
        if not str(config.get(name)).startswith(schemes):
            raise Distrusted(f"The provider's {name} is {config.get(name)!r}.")
    return config


def _signing_key(header: Mapping[str, Any], published: Mapping[str, Any]) -> jwt.PyJWK:
    """The published key that `header` names; without a name the only one of its kind."""
    algorithm, name = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise Distrusted(f"The ID token is signed by {algorithm!r}.")
    listed = published.get("keys")
    found = [
        key
        for key in (listed if isinstance(listed, list) else [])
        if isinstance(key, dict)
        and key.get("use", "sig") == "sig"
        and key.get("alg", algorithm) == algorithm
        and (name is None or key.get("kid") == name)
    ]
    if len(found) != 1:
        raise Distrusted(f"{len(found)} of the provider's keys are {name!r}.")
    return jwt.PyJWK(found[0], algorithm)
