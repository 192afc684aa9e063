"""What the site makes of its environment: defaults, refusals by name, secrets kept once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chatsite import site_config, state_dir
from chatsite.database_url import parse_database_url
from inference.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def manage(*arguments: str, tmp: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**clean, "STATE_DIR": str(tmp / "state"), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("MAX_MESSAGE_CHARS", "many", "MAX_MESSAGE_CHARS must be a whole number, not 'many'."),
        ("MAX_ACTIVE_PER_USER", "0", "MAX_ACTIVE_PER_USER must be between 1 and 10000, not 0."),
        ("SIGN_UP_OPEN", "perhaps", "SIGN_UP_OPEN must be 1 or 0, not 'perhaps'."),
        ("TOOLS", "python,shell", "TOOLS names 'shell'; there are python, time, search_chats, or none."),
    ],
)
def test_bad_value_of_the_site_is_named(name: str, value: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        site_config.load({name: value})
    assert caught.value.message == sentence


def test_site_config_without_environment_is_its_defaults() -> None:
    assert site_config.load({}) == site_config.SiteConfig()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://ann:p%40ss%2Fword@db.example:5433/chat?sslmode=require",
            ("chat", "ann", "p@ss/word", "db.example", "5433", {"sslmode": "require"}),
        ),
        ("postgres://db/chat", ("chat", "", "", "db", "", {})),
        ("postgresql://[::1]:5432/chat", ("chat", "", "", "::1", "5432", {})),
        ("postgresql:///chat?host=/run/postgresql", ("chat", "", "", "", "", {"host": "/run/postgresql"})),
    ],
)
def test_database_url_is_taken_apart(url: str, expected: tuple[object, ...]) -> None:
    found = parse_database_url(url)
    assert tuple(found[name] for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")) == expected


@pytest.mark.parametrize("url", ["mysql://a:secret@b/c", "postgresql://a:secret@b", "postgresql://a:secret@b:x/c", "c"])
def test_bad_database_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^DATABASE_URL must look like") as caught:
        parse_database_url(url)
    assert "secret" not in caught.value.message


def test_secret_key_is_made_once_even_by_many_at_once(tmp_path: Path) -> None:
    keys: list[str] = []
    threads = [threading.Thread(target=lambda: keys.append(state_dir.secret_key(tmp_path / "s"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 16
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 50
    assert (tmp_path / "s" / state_dir.SECRET_KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path / "s") == [state_dir.SECRET_KEY_FILE]


def test_unusable_state_dir_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match="STATE_DIR"):
        state_dir.make(tmp_path / "file" / "state")
    with pytest.raises(ConfigError, match="STATE_DIR"):
        state_dir.secret_key(tmp_path / "file" / "state")


@pytest.mark.parametrize("arguments", [["up", "--state-dir", "/x/y"], ["up", "--port", "1", "--state-dir=/x/y"]])
def test_state_dir_flag_stands_for_the_variable(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIR", "/elsewhere")
    state_dir.take_flag(["manage.py", *arguments])
    assert os.environ["STATE_DIR"] == "/x/y"


def test_bad_value_stops_every_command_with_one_sentence(tmp_path: Path) -> None:
    done = manage("check", tmp=tmp_path, DEBUG="maybe")
    assert (done.returncode, done.stderr) == (1, "DEBUG must be 1 or 0, not 'maybe'.\n")


def test_short_secret_key_is_refused(tmp_path: Path) -> None:
    done = manage("check", tmp=tmp_path, SECRET_KEY="short")
    assert (done.returncode, done.stderr) == (1, "SECRET_KEY must have at least 32 characters, not 5.\n")


def test_deploy_check_is_clean_behind_tls(tmp_path: Path) -> None:
    done = manage(
        *("check", "--deploy", "--fail-level", "WARNING"),
        tmp=tmp_path,
        BEHIND_TLS="1",
        ALLOWED_HOSTS="chat.example.org",
        CSRF_TRUSTED_ORIGINS="https://chat.example.org",
    )
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_command_without_a_database_says_so_in_one_sentence(tmp_path: Path) -> None:
    done = manage("prepare", tmp=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("DATABASE_URL is not set and no bundled Postgres runs in STATE_DIR")
    assert done.stderr.count("\n") == 1
