"""What the site makes of its environment: defaults, refusals by name, secrets kept once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from chatsite import site_config, state_dir
from chatsite.database_url import parse_database_url
from inference import config
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
        ("postgresql://db/chat?user=ann@azure", ("chat", "", "", "db", "", {"user": "ann@azure"})),
        ("postgresql:///chat?host=/run/postgresql", ("chat", "", "", "", "", {"host": "/run/postgresql"})),
    ],
)
def test_database_url_is_taken_apart(url: str, expected: tuple[object, ...]) -> None:
    found = parse_database_url(url)
    assert tuple(found[name] for name in ("NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")) == expected


EXAMPLES = {"REDIS_URL": "redis://:p{}w@host:6379/0", "DATABASE_URL": "postgresql://ann:p{}w@host:5432/chat"}


def read_address(name: str, url: str) -> object:
    return config.load({name: url}) if name == "REDIS_URL" else parse_database_url(url)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize(("sign", "quoted"), [("#", "%23"), ("/", "%2F"), ("?", "%3F"), ("@", "%40"), ("[", "%5B")])
def test_password_that_would_cut_its_address_short_is_refused_by_name(name: str, sign: str, quoted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_address(name, EXAMPLES[name].format(sign))
    assert caught.value.message.startswith(f"{name} must look like ")
    assert "percent-encode what is special in a user name or password: # as %23" in caught.value.message
    assert f"{sign} as {quoted}" in caught.value.message
    assert f"p{sign}w" not in caught.value.message
    read_address(name, EXAMPLES[name].format(quoted))


@pytest.mark.parametrize(
    "url",
    [
        "redis://:p#w@host",
        "redis://:6379/w@host",
        "redis://:a@b/c@host",
        "redis://:a@b/c",
        "redis://:p\nw@host",
        "host:1",
    ],
)
def test_redis_url_that_means_another_server_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^REDIS_URL must look like"):
        read_address("REDIS_URL", url)


@pytest.mark.parametrize(
    "url", ["redis://", "redis://host", "rediss://ann:p%23@[::1]:6380/2?ssl_cert_reqs=none", "REDIS://host/0"]
)
def test_redis_url_that_is_one_is_taken(url: str) -> None:
    assert config.load({"REDIS_URL": url}).redis_url == url


def test_redis_url_of_another_scheme_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError, match="not begin with 'http'") as caught:
        config.load({"REDIS_URL": "http://:secret@host"})
    assert "secret" not in caught.value.message


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


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
NOBODY = 65534


@needs_root
def test_root_writes_nothing_into_a_state_directory_of_another(tmp_path: Path) -> None:
    var = tmp_path / "var"
    var.mkdir()
    for uid, name in ((NOBODY, "nobody"), (54_321, "user 54321")):
        os.chown(var, uid, uid)
        for deed in (state_dir.make, state_dir.secret_key, state_dir.check_owner):
            with pytest.raises(
                ConfigError, match=rf"STATE_DIR {var} belongs to {name}, .* run this as {name}"
            ) as caught:
                deed(var)
            assert "\n" not in caught.value.message
        assert os.listdir(var) == []


@needs_root
def test_root_makes_no_state_directory_inside_a_persons_folder(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match=r"would lie in a folder of nobody.*let STATE_DIR name a place of root's own"):
        state_dir.secret_key(tmp_path / "site" / "var")
    assert os.listdir(tmp_path) == []
    os.chown(tmp_path, 54_321, 54_321)  # a container's root over a folder of its host: nobody here will miss it
    state_dir.make(tmp_path / "site" / "var")


@needs_root
def test_command_of_root_on_a_persons_state_directory_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", NOBODY, NOBODY)
    done = manage("up", tmp=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"STATE_DIR {tmp_path}/state belongs to nobody")
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path / "state") == []


AS_NOBODY = """
import os, sys
from pathlib import Path
from chatsite import state_dir
from inference.errors import ConfigError
os.setgid(65534)
os.setuid(65534)
try:
    state_dir.secret_key(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


@needs_root
def test_owner_is_told_how_to_get_back_what_root_left() -> None:
    """As it was after `sudo make up`: the directory is the person's, the files inside are root's."""
    with tempfile.TemporaryDirectory(prefix="smolfleet-owner-") as name:
        (Path(name) / "logs").mkdir()
        (Path(name) / "secret_key").write_text("of root")
        (Path(name) / "secret_key").chmod(0o600)
        os.chown(name, NOBODY, NOBODY)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, name], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert f"STATE_DIR {name} holds files of another user (logs, secret_key)" in done.stdout, done.stderr
        assert f"sudo chown -R nobody {name}" in done.stdout


def test_root_or_not_ones_own_state_directory_is_ones_own(tmp_path: Path) -> None:
    state_dir.check_owner(tmp_path)
    state_dir.check_owner(tmp_path / "not" / "yet")
