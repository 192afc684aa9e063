"""`manage.py pullmodel NAME`: have a model's files on this machine before a worker needs them. Prints the path of the
model itself last."""

from __future__ import annotations

import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from inference.catalog import Catalog
from inference.errors import InferenceError


class Command(BaseCommand):
    help = "Download a model's file (into MODEL_DIR, or the Hugging Face cache), check it, and print its path last."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "model", metavar="NAME", help="catalog name, owner/repo:file.gguf of the hub, or the path of a .gguf"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            catalog = Catalog.of(settings.INFERENCE)
            path = catalog.fetch(catalog.entry(options["model"])).path
        except InferenceError as error:
            sys.exit(error.message)
        except KeyboardInterrupt:
            sys.exit("Stopped; what came so far is kept.")
        self.stdout.write(str(path))
