"""Who is told in full what machines ask for: names of workers, devices, models and all numbers.

One rule for /health/ready and /metrics. Whoever shows METRICS_TOKEN; without one, this machine itself, and not through
a proxy on it. Called by probes, which answer before sessions and must while Postgres or Redis is away.
"""

from __future__ import annotations

import ipaddress
import secrets
from importlib import import_module

import structlog
from django.conf import settings
from django.contrib.auth import get_user
from django.db import Error as DatabaseError
from django.http import HttpRequest

from chatsite.rules import roles

log = structlog.get_logger(__name__)

FORWARDING = ("forwarded", "via", "x-real-ip", "x-client-ip", "cf-connecting-ip", "true-client-ip")


def may_see_all(request: HttpRequest) -> bool:
    token = settings.SMOLFLEET.metrics_token
    if token:
        shown = request.headers.get("Authorization", "")
        return secrets.compare_digest(shown.encode(), f"Bearer {token}".encode())
    return _is_loopback(str(request.META.get("REMOTE_ADDR", ""))) and not _is_forwarded(request)


def is_operator(request: HttpRequest) -> bool:
    """Whether the person whose session this is may see the fleet. Asks Postgres; False when it cannot be asked."""
    session_key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    if not session_key:
        return False
    try:
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
        return roles.may_see_fleet(get_user(request))
    except DatabaseError as error:
        log.warning("session not read for a probe", reason=type(error).__name__)
        return False


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def _is_forwarded(request: HttpRequest) -> bool:
    """A proxy on this machine asks from here, too, for whomever."""
    return any(name.lower() in FORWARDING or name.lower().startswith("x-forwarded") for name in request.headers)
