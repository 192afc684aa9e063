"""`manage.py retain`: delete by age now, as the site worker does every hour; `--dry-run` only says what would go."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from chatsite.privacy import retention
from chatsite.settings import database_trouble


class Command(BaseCommand):
    help = "Delete what is older than the rules allow, as the site worker does every hour."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="delete nothing; say what would go")

    def handle(self, *args: Any, **options: Any) -> None:
        is_dry = options["dry_run"]
        try:
            gone = retention.due() if is_dry else retention.retain()
        except OperationalError as error:
            raise CommandError(database_trouble(error)) from error
        if gone is None:
            raise CommandError("Another process is just doing it; nothing was done here.")
        self.stdout.write("Would be deleted:" if is_dry else "Deleted:")
        for what, number in (
            ("conversations", gone.conversations),
            ("records of answers without a conversation", gone.answers),
            ("links that ended long ago", gone.links),
            ("sessions that have ended", gone.sessions),
            ("audit entries", gone.audit_entries),
        ):
            self.stdout.write(f"{number:>10,} {what}")
