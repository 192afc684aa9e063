"""`manage.py messages`, which `make messages` runs: brings the catalogues in `locale` up to what the sources say.

Finds every marked text of `chatsite` and `templates` with Babel alone, so that nobody needs GNU gettext and a test can
ask the same. What is new stands there untranslated, what is gone is dropped; nothing is guessed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.pofile import read_po, write_po
from django.conf import settings
from django.core.management.base import BaseCommand
from django.utils.translation import templatize

KEYWORDS: dict[str, Any] = {
    "_": None,
    "gettext": None,
    "gettext_lazy": None,
    "gettext_noop": None,
    "ngettext": (1, 2),
    "ngettext_lazy": (1, 2),
    "pgettext": ((1, "c"), 2),
    "pgettext_lazy": ((1, "c"), 2),
    "npgettext": ((1, "c"), 2, 3),
}
COMMENT = "Translators:"


class Command(BaseCommand):
    help = "Put the texts to translate into locale/*/LC_MESSAGES/django.po."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        template = extracted(settings.BASE_DIR)
        for path in catalogue_files():
            catalogue = catalogue_at(path)
            catalogue.update(template, no_fuzzy_matching=True, update_header_comment=False)
            catalogue.obsolete.clear()
            header, _, _ = path.read_text(encoding="utf-8").partition("\n\n")  # kept: Babel's own would bring the date
            told = io.BytesIO()
            write_po(told, catalogue, width=120, omit_header=True, include_lineno=False, sort_output=True)
            path.write_text(header + "\n\n" + told.getvalue().decode().lstrip("\n"), encoding="utf-8")
            missing = len([message for message in catalogue if message.id and not is_complete(message.string)])
            self.stdout.write(f"{path.relative_to(settings.BASE_DIR)}: {len(catalogue)} texts, {missing} to translate")


def catalogue_files() -> list[Path]:
    return sorted(path for folder in settings.LOCALE_PATHS for path in Path(folder).glob("*/LC_MESSAGES/django.po"))


def catalogue_at(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file, locale=path.parent.parent.name, domain="django")


def is_complete(string: str | tuple[str, ...] | list[str] | None) -> bool:
    return all(string) if string and not isinstance(string, str) else bool(string)


def extracted(root: Path) -> Catalog:
    """Every text of the sources below `root` that is to be translated."""
    catalogue = Catalog()
    for path in _sources(root):
        place = str(path.relative_to(root))
        for _line, message, comments, context in _texts(path):
            catalogue.add(message, locations=[(place, 0)], auto_comments=comments, context=context)
    return catalogue


def _sources(root: Path) -> Iterator[Path]:
    yield from sorted((root / "chatsite").rglob("*.py"))
    yield from sorted(path for path in (root / "templates").rglob("*") if path.suffix in (".html", ".txt"))


def _texts(path: Path) -> Iterator[tuple[int, Any, list[str], str | None]]:
    source = path.read_text(encoding="utf-8")
    method = "python"
    if path.suffix != ".py":
        # Django makes calls of the tags and blanks out the rest, which is no program: read by the laxer rules.
        source = "\n".join(line.strip() for line in templatize(source, origin=str(path)).splitlines())
        method = "javascript"
    yield from extract(method, io.BytesIO(source.encode()), KEYWORDS, (COMMENT,), {"encoding": "utf-8"})
