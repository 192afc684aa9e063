"""Exit 0 while a site worker gives signs of life, 1 otherwise: its container's health check."""

from __future__ import annotations

from typing import Any

import redis
from django.core.management.base import BaseCommand, CommandError

from chatsite.ops import heartbeat


class Command(BaseCommand):
    help = "Whether a site worker lives."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            is_alive = heartbeat.is_alive()
        except redis.RedisError as error:
            raise CommandError(f"Redis cannot be asked: {type(error).__name__}.") from error
        if not is_alive:
            raise CommandError("No site worker gives a sign of life.")
        self.stdout.write("alive")
