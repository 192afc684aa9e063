"""What an OpenID provider says about groups: who is in which of this site's, and who is staff. Told at each sign-in.

The claim decides wholly: a person is in those groups of this site that it names, and in no other. Groups are made here,
by an admin who knows what they allow; a name that no group here has is passed over. Only people who come through that
provider are touched, and only where `OIDC_GROUPS_CLAIM` is set. The last active superuser stays staff whatever it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from allauth.account.signals import user_logged_in
from allauth.socialaccount.models import SocialLogin
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import transaction

from chatsite.accounts.models import User
from chatsite.outside_config import OPENID_ID, OpenIDConfig

log = structlog.get_logger(__name__)


def named(claims: Mapping[str, Any], claim: str) -> list[str]:
    """The names of groups that `claims` hold under `claim`, which may lead into other claims: `realm_access.roles`.

    A claim of exactly that name goes first, for names may have dots. A lone text is one group (so some providers tell
    of the only one). What is missing or no text names nothing.
    """
    value: Any = claims.get(claim)
    if value is None:
        value = claims
        for part in claim.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        value = [value]
    names = value if isinstance(value, list) else []
    return sorted({name for name in names if isinstance(name, str) and name.isprintable()})


def sync(user: User, names: list[str], config: OpenIDConfig) -> None:
    """Let `user` be in the groups of `names` that exist, and staff by whether the staff group is among them."""
    with transaction.atomic():
        user.groups.set(Group.objects.filter(name__in=names))
        is_staff = config.staff_group in names
        if not config.staff_group or user.is_staff == is_staff:
            return
        if not is_staff and _is_last_superuser(user):
            log.warning("the last superuser stays staff, whatever the provider says", user=user.get_username())
            return
        user.is_staff = is_staff
        user.save(update_fields=["is_staff"])
        log.info("staff by the provider's groups", user=user.get_username(), is_staff=is_staff)


def _is_last_superuser(user: User) -> bool:
    """The rows are locked: of two superusers who leave at the same time one stays."""
    able = User.objects.select_for_update().filter(is_superuser=True, is_active=True, is_staff=True).order_by("pk")
    return [other.pk for other in able] == [user.pk]


def _signed_in(user: User, sociallogin: SocialLogin | None = None, **_: object) -> None:
    config = settings.SMOLFLEET.outside.openid
    if sociallogin is not None and sociallogin.account.provider == OPENID_ID and config and config.groups_claim:
        sync(user, sociallogin.account.extra_data.get("groups", []), config)


def watch() -> None:
    """From now on each sign-in is followed by `sync`. Called once, when the app is ready."""
    user_logged_in.connect(_signed_in, dispatch_uid="chatsite.accounts.outside.groups")
