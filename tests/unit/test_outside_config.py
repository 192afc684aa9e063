"""Providers from the environment: whole, or not at all; what is wrong is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chatsite import site_config
from chatsite.outside_config import GitHubConfig, OpenIDConfig, OutsideConfig
from inference.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
OPENID = {
    "OIDC_ISSUER": "https://login.example.org/realms/team",
    "OIDC_CLIENT_ID": "smolfleet",
    "OIDC_CLIENT_SECRET": "secret",
}
GITHUB = {"GITHUB_CLIENT_ID": "id", "GITHUB_CLIENT_SECRET": "secret"}


def test_nothing_is_set_without_an_environment() -> None:
    config = site_config.load({})
    assert config.outside == OutsideConfig()
    assert config.sign_in_providers == []
    assert config.outside.origins == []


def test_providers_are_set_by_the_environment_alone() -> None:
    config = site_config.load(
        {
            **OPENID,
            **GITHUB,
            "OIDC_NAME": "Example",
            "OIDC_SCOPES": "openid, email groups",
            "OIDC_GROUPS_CLAIM": "groups",
            "OIDC_STAFF_GROUP": "ops",
            "OIDC_SIGN_UP": "0",
            "OIDC_FORM_ORIGINS": "https://sso.example.org, https://idp.example.net:8443",
            "PASSWORD_SIGN_IN": "0",
        }
    )
    assert config.outside.openid == OpenIDConfig(
        issuer="https://login.example.org/realms/team",
        client_id="smolfleet",
        client_secret="secret",
        name="Example",
        scopes=("openid", "email", "groups"),
        groups_claim="groups",
        staff_group="ops",
        sign_up=False,
    )
    assert config.outside.github == GitHubConfig(client_id="id", client_secret="secret")
    assert config.sign_in_providers == ["Example", "GitHub"]
    assert config.outside.origins == [
        "https://login.example.org",
        "https://github.com",
        "https://sso.example.org",
        "https://idp.example.net:8443",
    ]
    assert not config.password_sign_in
    assert not config.offers_sign_up


def test_secrets_are_not_in_what_a_log_would_print() -> None:
    assert "'secret'" not in repr(site_config.load({**OPENID, **GITHUB}))


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        ({**OPENID, "OIDC_CLIENT_SECRET": " "}, "OIDC_CLIENT_SECRET must be set too: OIDC_ISSUER is."),
        ({"OIDC_CLIENT_ID": "x"}, "OIDC_ISSUER must be set too: OIDC_CLIENT_ID is."),
        ({"OIDC_NAME": "Example"}, "OIDC_ISSUER must be set too: OIDC_NAME is."),
        ({"GITHUB_CLIENT_SECRET": "x"}, "GITHUB_CLIENT_ID must be set too: GITHUB_CLIENT_SECRET is."),
        ({**OPENID, "OIDC_NAME": "x" * 41}, "OIDC_NAME must have at most 40 characters, not 41."),
        ({**OPENID, "OIDC_SCOPES": "profile"}, "OIDC_SCOPES must hold openid, not 'profile'."),
        (
            {**OPENID, "OIDC_STAFF_GROUP": "ops"},
            "OIDC_GROUPS_CLAIM must be set too: it says where to look for OIDC_STAFF_GROUP.",
        ),
        ({**OPENID, "OIDC_SIGN_UP": "maybe"}, "OIDC_SIGN_UP must be 1 or 0, not 'maybe'."),
        (
            {"PASSWORD_SIGN_IN": "0"},
            "PASSWORD_SIGN_IN must be 1 where no other way to sign in is set: OIDC_ISSUER is empty.",
        ),
        (
            {"OIDC_FORM_ORIGINS": "https://sso.example.org/login"},
            "OIDC_FORM_ORIGINS must hold addresses like https://login.example.org, "
            "not 'https://sso.example.org/login'.",
        ),
    ],
)
def test_what_is_set_by_half_or_wrong_is_named(env: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        site_config.load(env)
    assert caught.value.message == sentence


def test_settings_follow_it(tmp_path: Path) -> None:
    """In a process of its own: settings are read once."""
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    code = (
        "from django.conf import settings as s; "
        "print(s.ACCOUNT_DEFAULT_HTTP_PROTOCOL, *s.CONTENT_SECURITY_POLICY['DIRECTIVES']['form-action'], "
        "*s.ACCOUNT_REAUTHENTICATION_METHODS)"
    )
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", code],
        cwd=ROOT,
        env={**clean, **OPENID, "STATE_DIR": str(tmp_path), "BEHIND_TLS": "1", "PASSWORD_SIGN_IN": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "https 'self' https://login.example.org mfa\n", done.stderr


@pytest.mark.parametrize("issuer", ["https://login.example.org/", "http://127.0.0.1:8080/realms/x", "http://[::1]:1"])
def test_issuer_may_be_over_tls_or_on_this_machine(issuer: str) -> None:
    assert site_config.load({**OPENID, "OIDC_ISSUER": issuer}).outside.openid is not None


@pytest.mark.parametrize(
    "issuer",
    [
        "http://login.example.org",
        "login.example.org",
        "https://",
        "https://login.example.org:x",
        "https://login.example.org/?a=1",
        "https://login.example.org/.well-known/openid-configuration",
        "https://login.example.org; script-src *",
        "https://login.example.org,x",
    ],
)
def test_issuer_that_cannot_be_trusted_is_refused(issuer: str) -> None:
    with pytest.raises(ConfigError, match=r"^OIDC_ISSUER must be the provider's address"):
        site_config.load({**OPENID, "OIDC_ISSUER": issuer})
