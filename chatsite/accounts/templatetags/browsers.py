"""`{{ session.user_agent|browser }}`: the browser in a few words."""

from __future__ import annotations

from django import template
from django.utils.translation import gettext as _

from chatsite.accounts import browsers

register = template.Library()


@register.filter
def browser(user_agent: str) -> str:
    """ "Firefox on Linux", or as much of it as is known; a program by its own words."""
    name, system = browsers.described(user_agent)
    if name and system:
        return _("%(browser)s on %(system)s") % {"browser": name, "system": system}
    return name or system or user_agent[: browsers.MAX_CHARS] or _("unknown")
