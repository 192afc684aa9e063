"""Which outside accounts people may sign in with: an OpenID Connect provider, GitHub, both or none.

Read once by `site_config`; a half-set provider stops the start with the name of what is missing. Apps read it as
`settings.SMOLFLEET.outside`. Knows nothing of Django.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from inference.config import Environment
from inference.errors import ConfigError

OPENID_ID = "oidc"  # what the provider is called in addresses and rows; there is one at most
GITHUB_ORIGIN = "https://github.com"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MAX_NAME_CHARS = 40  # it stands on a button

_NEEDED = ("OIDC_ISSUER", "OIDC_CLIENT_ID", "OIDC_CLIENT_SECRET")
_USELESS_ALONE = ("OIDC_NAME", "OIDC_SCOPES", "OIDC_GROUPS_CLAIM", "OIDC_STAFF_GROUP")


@dataclass(frozen=True, kw_only=True)
class OpenIDConfig:
    issuer: str  # https://…, as the provider names itself
    client_id: str
    client_secret: str = field(repr=False)
    name: str = "OpenID"  # what the button says after "Sign in with"
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = ""  # a claim, or the way to one inside others (realm_access.roles); "" = groups are not touched
    staff_group: str = ""  # whoever is in it is staff, whoever leaves it is not; "" = staff is not touched
    sign_up: bool = True  # new people may come this way, whatever `sign_up_open` says
    link_by_email: bool = False  # True: an address verified on both sides is the same person


@dataclass(frozen=True, kw_only=True)
class GitHubConfig:
    """New people may come this way where anybody may sign up: everybody can have an account there."""

    client_id: str
    client_secret: str = field(repr=False)
    name: str = "GitHub"


@dataclass(frozen=True, kw_only=True)
class OutsideConfig:
    openid: OpenIDConfig | None = None
    github: GitHubConfig | None = None
    form_origins: tuple[str, ...] = ()  # where providers send a browser on to, besides their own address

    @property
    def names(self) -> list[str]:
        return [provider.name for provider in (self.openid, self.github) if provider]

    @property
    def origins(self) -> list[str]:
        """Where a form of ours may lead a browser: the content policy holds for redirects after it, too."""
        own = [_origin(self.openid.issuer)] if self.openid else []
        return [*own, *([GITHUB_ORIGIN] if self.github else []), *self.form_origins]


def load(env: Environment) -> OutsideConfig:
    """Read `env`.

    Raises:
        ConfigError: a provider is set by half, or a value makes no sense; the sentence begins with the name.
    """
    config = OutsideConfig(openid=_openid(env), github=_github(env), form_origins=env.words("OIDC_FORM_ORIGINS"))
    for origin in config.form_origins:
        if not _is_secure(origin) or _origin(origin) != origin:
            raise ConfigError(f"OIDC_FORM_ORIGINS must hold addresses like https://login.example.org, not {origin!r}.")
    return config


def _openid(env: Environment) -> OpenIDConfig | None:
    if not _all_or_none(env, _NEEDED, _USELESS_ALONE):
        return None
    issuer = env.text("OIDC_ISSUER", "")
    if not _is_secure(issuer) or urlsplit(issuer).query or "/.well-known/" in issuer:
        raise ConfigError(
            "OIDC_ISSUER must be the provider's address as it names itself, https:// (http:// on this machine alone) "
            f"and without /.well-known/, not {issuer!r}."
        )
    name = env.text("OIDC_NAME", OpenIDConfig.name)
    if len(name) > MAX_NAME_CHARS:
        raise ConfigError(f"OIDC_NAME must have at most {MAX_NAME_CHARS} characters, not {len(name)}.")
    scopes = tuple(env.text("OIDC_SCOPES", " ".join(OpenIDConfig.scopes)).replace(",", " ").split())
    if "openid" not in scopes:
        raise ConfigError(f"OIDC_SCOPES must hold openid, not {' '.join(scopes)!r}.")
    groups_claim = env.text("OIDC_GROUPS_CLAIM", "")
    staff_group = env.text("OIDC_STAFF_GROUP", "")
    if staff_group and not groups_claim:
        raise ConfigError("OIDC_GROUPS_CLAIM must be set too: it says where to look for OIDC_STAFF_GROUP.")
    return OpenIDConfig(
        issuer=issuer,
        client_id=env.text("OIDC_CLIENT_ID", ""),
        client_secret=env.text("OIDC_CLIENT_SECRET", ""),
        name=name,
        scopes=scopes,
        groups_claim=groups_claim,
        staff_group=staff_group,
        sign_up=env.flag("OIDC_SIGN_UP", True),
        link_by_email=env.flag("OIDC_LINK_BY_EMAIL", False),
    )


def _github(env: Environment) -> GitHubConfig | None:
    if not _all_or_none(env, ("GITHUB_CLIENT_ID", "GITHUB_CLIENT_SECRET"), ()):
        return None
    return GitHubConfig(client_id=env.text("GITHUB_CLIENT_ID", ""), client_secret=env.text("GITHUB_CLIENT_SECRET", ""))


def _all_or_none(env: Environment, needed: tuple[str, ...], useless_alone: tuple[str, ...]) -> bool:
    given = [name for name in (*needed, *useless_alone) if env.text(name, "")]
    for name in needed:
        if given and name not in given:
            raise ConfigError(f"{name} must be set too: {given[0]} is.")
    return bool(given)


def _is_secure(url: str) -> bool:
    """Whether tokens may travel there: over TLS, or inside this machine. The host goes into a header."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if not re.fullmatch(r"([\w.-]+|\[[0-9a-fA-F:.]+\])(:\d{1,5})?", parts.netloc, re.ASCII):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
