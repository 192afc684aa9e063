"""Make the database and the static files ready, and the first admin: idempotent, and safe from several nodes."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from chatsite import advisory_lock
from chatsite.accounts.models import User
from inference.config import Environment

FINGERPRINT = "collected.json"


class Command(BaseCommand):
    help = "Migrate, collect static files if they changed, create the first admin."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--no-static", action="store_true", help="leave the static files alone")
        parser.add_argument("--no-admin", action="store_true", help="create no admin")

    def handle(self, *args: Any, **options: Any) -> None:
        with advisory_lock.waited_for(advisory_lock.PREPARE, tell=self._tell_of_another):
            call_command("migrate", verbosity=0, interactive=False)
            if not options["no_admin"]:
                self._create_admin()
        if not options["no_static"]:
            collect_static()

    def _tell_of_another(self) -> None:
        self.stdout.write("Another node prepares the database; waiting for it.")

    def _create_admin(self) -> None:
        """On the first run alone: while nobody is an admin."""
        if User.objects.filter(is_superuser=True).exists():
            return
        env = Environment(os.environ)
        name = env.text("ADMIN_USERNAME", "admin")
        given = env.text("ADMIN_PASSWORD", "")
        password = given or secrets.token_urlsafe(12)
        if User.objects.filter(username=name).exists():
            raise CommandError(f"ADMIN_USERNAME {name!r} is an ordinary user already; choose another name.")
        User.objects.create_superuser(username=name, password=password)
        shown = "as set in ADMIN_PASSWORD" if given else password
        self.stdout.write(f"Admin user: {name}\nAdmin password: {shown}\n(shown this once)")


def collect_static() -> bool:
    """Collect static files unless those there were made from the same sources. Whether it had to."""
    root = Path(settings.STATIC_ROOT)
    wanted = _fingerprint()
    record = root / FINGERPRINT
    try:
        is_fresh = json.loads(record.read_text()) == wanted
    except (FileNotFoundError, ValueError):
        is_fresh = False
    if is_fresh:
        return False
    call_command("collectstatic", verbosity=0, interactive=False, clear=True)
    record.write_text(json.dumps(wanted))
    return True


def _fingerprint() -> str:
    digest = hashlib.sha256(django.__version__.encode())
    for finder in get_finders():
        for name, storage in finder.list([]):
            facts = os.stat(storage.path(name))
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()
