"""How quotas are put into sentences, in the reader's language: what is full, and when there are new tokens.

Pure functions. Called by the chat's refusal and by templates (`templatetags.quotas`).
"""

from __future__ import annotations

from django.utils.formats import date_format, number_format
from django.utils.translation import gettext as _

from chatsite.usage.calendar import Scope, Window
from chatsite.usage.quotas import Balance, QuotaFull


def why(full: QuotaFull) -> str:
    """What is used up, or too little, or held."""
    balance = full.balance
    facts = {
        "group": balance.pool.group_name if balance.pool else "",
        "limit": grouped(balance.limit or 0),
        "left": grouped(balance.left or 0),
        "needed": grouped(full.needed),
    }
    if not balance.unspent:
        return _spent(balance) % facts
    return f"{_too_little(balance) % facts} {_needs(full) % facts}"


def when(window: Window) -> str:
    """When it ends, as a sentence has it behind its verb: a time of the day, or the first day of the next month."""
    if window.scope is Scope.DAY:
        return _("at %(time)s") % {"time": f"{window.resets_at:%H:%M}"}
    return _("on %(date)s") % {"date": date_format(window.resets_at, "MONTH_DAY_FORMAT")}


def wait(seconds: int) -> str:
    """How long that is, in the two units that matter: "12 min", "5 h 12 min", "3 d 5 h"."""
    minutes = -(-seconds // 60)
    if minutes >= 1440:
        return _("%(days)d d %(hours)d h") % {"days": minutes // 1440, "hours": minutes % 1440 // 60}
    if minutes >= 60:
        return _("%(hours)d h %(minutes)d min") % {"hours": minutes // 60, "minutes": minutes % 60}
    return _("%(minutes)d min") % {"minutes": minutes}


def grouped(number: int) -> str:
    """With the thousands apart, as the reader's language has it."""
    return number_format(number, use_l10n=True, force_grouping=True)


def _spent(balance: Balance) -> str:
    is_day = balance.scope is Scope.DAY
    if balance.pool is None:
        today = _("You have used your %(limit)s tokens of today.")
        return today if is_day else _("You have used your %(limit)s tokens of this month.")
    today = _("The group %(group)s has used its %(limit)s tokens of today.")
    return today if is_day else _("The group %(group)s has used its %(limit)s tokens of this month.")


def _too_little(balance: Balance) -> str:
    is_day = balance.scope is Scope.DAY
    if balance.pool is None:
        today = _("Of your %(limit)s tokens of today %(left)s are left.")
        return today if is_day else _("Of your %(limit)s tokens of this month %(left)s are left.")
    today = _("Of the %(limit)s tokens that the group %(group)s has today %(left)s are left.")
    return today if is_day else _("Of the %(limit)s tokens that the group %(group)s has this month %(left)s are left.")


def _needs(full: QuotaFull) -> str:
    if full.is_held:
        return _("This needs %(needed)s; the rest is held for answers under way, and what they do not use comes back.")
    return _("This needs at least %(needed)s.")
