"""What time it is, anywhere: a model knows only the day its conversation began."""

from __future__ import annotations

import zoneinfo
from typing import Annotated

import msgspec
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import User
from chatsite.accounts.time_zones import zone_of
from chatsite.chat.tools.tool import Tool, ToolFailed


class Arguments(msgspec.Struct):
    zone: Annotated[str, msgspec.Meta(description="IANA time zone such as Europe/Berlin; empty: the user's")] = ""


def run(user: User, arguments: Arguments) -> str:
    """Date, weekday, time and distance from UTC. Raises ToolFailed where there is no such zone."""
    zone = zone_of(user)
    if wanted := arguments.zone.strip():
        try:
            zone = zoneinfo.ZoneInfo(wanted)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ToolFailed(f"There is no time zone {wanted[:60]!r}; an IANA name is asked for.") from None
    return timezone.now().astimezone(zone).strftime("%A, %Y-%m-%d %H:%M:%S %Z (UTC%z)")


TOOL = Tool(
    name="time",
    title=_("Clock"),
    description="Tells the date, weekday and time now, in a time zone.",
    arguments=Arguments,
    run=run,
)
