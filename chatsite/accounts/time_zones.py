"""A person's time zone: the one they chose, else that of the browser they used last, else the site's.

A script of every page puts the browser's into a cookie, which is only believed if it names a zone of this system. It is
kept with the person, so that what happens without a browser (an answer that ends, a program that asks) knows it, too.
Requests run in it; streams and background work ask for `zone_of`. Called by all apps.
"""

from __future__ import annotations

import functools
import uuid
import zoneinfo
from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from chatsite.accounts.models import ZONE_CHARS, User

COOKIE = "zone"
FOR_ALL = ("/sw.js", "/offline/", "/manifest.webmanifest", "/favicon.ico")  # nobody looks who asks: see `installing`


@functools.cache
def names() -> frozenset[str]:
    """IANA names that this system knows."""
    return frozenset(name for name in zoneinfo.available_timezones() if len(name) <= ZONE_CHARS)


def known(name: str) -> str:
    """`name` if it is one of a zone, else ""."""
    return name if name in names() else ""


def name_of(user: User) -> str:
    """Of the person's zone; "" is the site's."""
    return known(user.time_zone) or known(user.browser_time_zone)


def zone_of(user: User) -> zoneinfo.ZoneInfo:
    name = name_of(user)
    return zoneinfo.ZoneInfo(name) if name else _site_zone()


def zone_of_id(user_id: uuid.UUID) -> zoneinfo.ZoneInfo:
    """The same, of a person whose row is not at hand."""
    user = User.objects.filter(pk=user_id).only("time_zone", "browser_time_zone").first()
    return zone_of(user) if user else _site_zone()


def choose(user: User, name: str) -> None:
    """Have the person's days follow this zone; "" is the browser's. A preference: nobody else is told of it."""
    user.time_zone = known(name)
    User.objects.filter(pk=user.pk).update(time_zone=user.time_zone)


class TimeZoneMiddleware:
    """Has a request answered in the time zone of whoever asks. Behind sign-in."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with timezone.override(_of_request(request)):
            return self._get_response(request)


def _of_request(request: HttpRequest) -> zoneinfo.ZoneInfo:
    told = known(request.COOKIES.get(COOKIE, ""))
    is_personal = settings.SESSION_COOKIE_NAME in request.COOKIES and not request.path_info.startswith(FOR_ALL)
    user = request.user if is_personal else None
    if not isinstance(user, User):
        return zoneinfo.ZoneInfo(told) if told else _site_zone()
    if told and told != user.browser_time_zone:
        user.browser_time_zone = told
        User.objects.filter(pk=user.pk).update(browser_time_zone=told)
    return zone_of(user)


def _site_zone() -> zoneinfo.ZoneInfo:
    zone = timezone.get_default_timezone()
    assert isinstance(zone, zoneinfo.ZoneInfo), "USE_TZ is set, and TIME_ZONE a name"
    return zone
