"""`manage.py eraseuser NAME`: delete an account with everything that is of it, as its owner could themselves."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import OperationalError

from chatsite.accounts.models import User
from chatsite.privacy import erasure
from chatsite.settings import database_trouble


class Command(BaseCommand):
    help = "Delete a user's account for good: conversations, files, links, keys, sessions, everything that is theirs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("user", metavar="NAME", help="user name")
        parser.add_argument("--yes", action="store_true", help="do not ask")

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["user"]
        try:
            user = User.objects.filter(username=name).first()
            if user is None:
                raise CommandError(f"There is no user named {name!r}.")
            if not options["yes"]:
                self._ask(user)
            erasure.erase(user, None)
        except erasure.ErasureRefused as refusal:
            raise CommandError(str(refusal)) from refusal
        except OperationalError as error:
            raise CommandError(database_trouble(error)) from error
        self.stdout.write(f"The account {name!r} is gone, with everything that was of it.")

    def _ask(self, user: User) -> None:
        """Raise CommandError unless the name is typed again."""
        if not sys.stdin.isatty():
            raise CommandError("Nobody is there to be asked; --yes deletes without asking.")
        self.stdout.write(
            f"{user.get_username()} has {user.conversations.count():,} conversations. All of them go, with everything"
            " else of this account, and nothing brings them back."
        )
        if input("Type the user name again to delete it: ").strip() != user.get_username():
            raise CommandError("That is another name; nothing was deleted.")
