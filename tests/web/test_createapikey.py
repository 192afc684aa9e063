"""`manage.py createapikey`: the key alone on the last line, and plain words when it cannot be made."""

from __future__ import annotations

import os
import subprocess
import sys
from io import StringIO
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection

from chatsite.accounts.models import ApiKey, User
from chatsite.api.authentication import authenticate
from chatsite.rules.models import SiteRules

pytestmark = pytest.mark.django_db


def test_the_last_line_is_a_key_that_works_and_its_secret_is_stored_nowhere() -> None:
    user = User.objects.create_user("ada")
    out, err = StringIO(), StringIO()
    call_command("createapikey", "ada", "--name", "my script", stdout=out, stderr=err)
    secret = out.getvalue().splitlines()[-1]
    assert authenticate(f"Bearer {secret}").user == user
    row = ApiKey.objects.get()
    assert row.name == "my script"
    assert secret not in [str(getattr(row, field.attname)) for field in ApiKey._meta.concrete_fields]
    assert secret not in err.getvalue()


def test_as_a_process_the_key_is_the_last_line_and_a_missing_database_is_one_sentence(
    transactional_db: None,
) -> None:
    User.objects.create_user("ada")
    url = urlsplit(os.environ["DATABASE_URL"])
    there = url._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    made = run("ada", DATABASE_URL=there)
    assert made.returncode == 0, made.stdout
    assert authenticate(f"Bearer {made.stdout.splitlines()[-1]}")
    unknown = run("nobody", DATABASE_URL=there)
    assert (unknown.returncode, unknown.stdout) == (1, "CommandError: There is no user named 'nobody'.\n")
    away = run("ada", DATABASE_URL="postgresql://127.0.0.1:1/smolfleet")
    assert away.returncode == 1
    assert "Traceback" not in away.stdout
    assert "cannot be reached" in away.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "rule", "scopes", "days"),
    [
        ([], None, "chat models", None),
        (["--scope", "chat"], None, "chat", None),
        (["--scope", "models", "--scope", "chat", "--days", "30"], None, "chat models", 30),
        ([], 90, "chat models", 90),
        (["--days", "7"], 90, "chat models", 7),
        ([], 36_500, "chat models", 3_650),
    ],
)
def test_a_key_may_do_what_was_said_for_as_long_as_was_said(
    arguments: list[str], rule: int | None, scopes: str, days: int | None
) -> None:
    User.objects.create_user("ada")
    SiteRules.objects.create(id=1, key_days=rule)
    out, err = StringIO(), StringIO()
    call_command("createapikey", "ada", *arguments, stdout=out, stderr=err)
    key = authenticate(f"Bearer {out.getvalue().splitlines()[-1]}")
    assert key.scopes == scopes
    assert (
        key.expires_at and (key.expires_at - key.created_at).days + 1
    ) == days  # made a moment after it was reckoned
    end = f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never"
    assert f"Expires: {end}" in err.getvalue()


def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "createapikey", name],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
        cwd=settings.BASE_DIR,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nobody"], "There is no user named 'nobody'."),
        (["gone"], "The user 'gone' is switched off."),
        (["ada", "--name", "x" * 81], "--name: The name has 81 characters; at most 80 fit."),
        (["ada", "--days", "0"], "--days: A key counts for 1 to 3650 days."),
        (["ada", "--days", "31"], "--days: On this site a key counts for 30 days at most."),
        (
            ["ada", "--scope", "root"],
            "Error: argument --scope: invalid choice: 'root' (choose from 'chat', 'models')",
        ),
    ],
)
def test_a_key_that_cannot_be_made_is_one_sentence_and_exit_code_1(arguments: list[str], sentence: str) -> None:
    User.objects.create_user("gone", is_active=False)
    User.objects.create_user("ada")
    SiteRules.objects.create(id=1, key_days=30)
    with pytest.raises(CommandError) as caught:
        call_command("createapikey", *arguments)
    assert str(caught.value) == sentence
    assert caught.value.returncode == 1
    assert not ApiKey.objects.exists()
