"""`manage.py createapikey USER`: a key for programs. Prints the key alone on the last line; it is never shown again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from chatsite.accounts.models import ApiKey, User
from chatsite.settings import database_trouble

MAX_NAME_CHARS = 80


class Command(BaseCommand):
    help = "Make an API key for a user and print it, alone, on the last line. It cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", metavar="USER", help="user name")
        parser.add_argument("--name", default="", help="what the key is for, to tell keys apart")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["name"].strip()
        if len(name) > MAX_NAME_CHARS:
            raise CommandError(f"--name may have at most {MAX_NAME_CHARS} characters.")
        try:
            user = User.objects.filter(username=options["user"]).first()
        except OperationalError as error:
            raise CommandError(database_trouble(error)) from error
        if user is None:
            raise CommandError(f"There is no user named {options['user']!r}.")
        if not user.is_active:
            raise CommandError(f"The user {options['user']!r} is switched off.")
        _, secret = ApiKey.create(user, name)
        self.stderr.write(f"A key for {user.username}; keep it, it cannot be shown again:")
        self.stdout.write(secret)
