"""What the README promises by name exists, and every setting that exists is in the README."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from chatsite import site_config
from inference import config

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


class Recorder(Mapping[str, str]):
    """An empty environment that remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        self.asked.add(name)
        return default

    def __getitem__(self, name: str) -> str:
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_every_setting_is_in_the_readme() -> None:
    env = Recorder()
    config.load(env)
    site_config.load(env)
    source = (ROOT / "chatsite" / "settings.py").read_text()
    asked = env.asked | set(re.findall(r'_env\.\w+\(\s*"([A-Z_]+)"', source))
    listed = set(re.findall(r"`([A-Z][A-Z_]+)`", README))
    assert asked - listed == set()


def test_readme_lists_no_setting_that_nothing_reads() -> None:
    code = "".join(path.read_text() for folder in ("chatsite", "inference") for path in (ROOT / folder).rglob("*.py"))
    table = README[README.index("## Settings") : README.index("## Licence")]
    for name in re.findall(r"`([A-Z][A-Z_]{3,})`", table):
        assert f'"{name}"' in code, name


DOCUMENTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/glossary.md")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_named_in_a_document_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(r"`([A-Za-z_]+(?:/[\w.]+)*/(?:[\w.]+\.\w+)?)`", text) + re.findall(
        r"\]\((?!https?:)([\w./]+)\)", text
    )
    assert named or document == "docs/glossary.md"
    for name in named:
        if not name.startswith(("var/", "v1/", "account", "ops/", "admin/", "review/", "health/")):
            places = [ROOT / name, (ROOT / document).parent / name, ROOT / "inference" / name]
            assert any(place.exists() for place in places), name
