"""`manage.py createapikey USER`: a key for programs. Prints the key alone on the last line; it is never shown again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from chatsite.accounts.models import SCOPES, User
from chatsite.api import keys
from chatsite.settings import database_trouble

FIELD_OPTIONS = {"name": "--name: ", "scopes": "--scope: ", "days": "--days: "}


class Command(BaseCommand):
    help = "Make an API key for a user and print it, alone, on the last line. It cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", metavar="USER", help="user name")
        parser.add_argument("--name", default="", help="what the key is for, to tell keys apart")
        parser.add_argument(
            "--scope",
            action="append",
            choices=SCOPES,
            dest="scopes",
            help="what it may do; may be given several times (default: everything)",
        )
        parser.add_argument("--days", type=int, help="until it expires (default: as late as the site's rules let it)")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            user = User.objects.filter(username=options["user"]).first()
            if user is None:
                raise CommandError(f"There is no user named {options['user']!r}.")
            if not user.is_active:
                raise CommandError(f"The user {options['user']!r} is switched off.")
            days = options["days"]
            if days is None and (longest := keys.longest_days(user)) is not None:
                days = min(longest, keys.MAX_DAYS)
            key, secret = keys.create(user, options["name"], scopes=options["scopes"] or SCOPES, days=days)
        except OperationalError as error:
            raise CommandError(database_trouble(error)) from error
        except keys.KeyRefused as refusal:
            raise CommandError(FIELD_OPTIONS.get(refusal.field or "", "") + refusal.message) from refusal
        end = f"{key.expires_at:%Y-%m-%d %H:%M %Z}" if key.expires_at else "never"
        self.stderr.write(f"May: {', '.join(key.scope_names)}. Expires: {end}.")
        self.stderr.write(f"A key for {user.username}; keep it, it cannot be shown again:")
        self.stdout.write(secret)
