"""What the log hears of from rows: accounts, groups, rights, keys, factors, links and rules, saved or deleted.

Whatever page, command or code does it. Django's admin needs no entries of its own for these: see `admin`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from django.apps import apps
from django.contrib.auth.hashers import get_hasher, identify_hasher, is_password_usable
from django.contrib.auth.models import Group
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete

from chatsite.accounts.models import ApiKey, User
from chatsite.audit import log
from chatsite.audit.changes import Changes, Watch
from chatsite.audit.models import Action
from chatsite.audit.origin import origin as asked

PERSONAL = ("username", "first_name", "last_name")
ROLES = ("is_active", "is_staff", "is_superuser")
ADDRESS_PAGES = "account_"  # allauth's pages begin so; it tells of addresses itself, once for each deed


def connect() -> None:
    Watch("accounts.User", user_saved, columns=(*PERSONAL, *ROLES, "email", "password"))
    Watch("accounts.ApiKey", key_saved, columns=("name", "scopes", "expires_at", "revoked_at"))
    Watch("auth.Group", group_saved, columns=("name",))
    Watch("sharing.Share", link_saved, columns=("scope", "expires_at", "revoked_at"))
    for model in ("SiteRules", "GroupRules", "UserRules"):
        Watch(f"rules.{model}", rules_saved)
        _on(post_delete, f"rules.{model}", rules_deleted)
    _on(pre_delete, "accounts.User", user_deleted)
    _on(post_delete, "accounts.ApiKey", key_deleted)
    _on(pre_delete, "auth.Group", group_deleted)
    _on(post_save, "mfa.Authenticator", factor_saved)
    _on(post_delete, "mfa.Authenticator", factor_deleted)
    if apps.is_installed("allauth.socialaccount"):
        _on(post_save, "socialaccount.SocialAccount", outside_account_saved)
        _on(post_delete, "socialaccount.SocialAccount", outside_account_deleted)
    for through in (User.groups.through, User.user_permissions.through, Group.permissions.through):
        _on(m2m_changed, through, rights_changed)


def _on(signal: Any, sender: Any, receiver: Any) -> None:
    signal.connect(receiver, sender=sender, dispatch_uid=f"audit {receiver.__name__} {sender}")


def _is_meant(model: type[Model], origin: Any) -> bool:
    """Whether rows of `model` were to be deleted, rather than something that they hang on."""
    return issubclass(getattr(origin, "model", type(origin)), model)


# -- people


def user_saved(user: User, changes: Changes, is_new: bool) -> None:
    if is_new:
        roles = {name: value for name, (_before, value) in changes.items() if name in ROLES}
        log.record_about(user, Action.CREATED, detail=roles)
        return
    password = changes.pop("password", None)  # hashes: of no one's concern
    if password is not None and not _is_same_password(user, password[0]):
        by_mail = {"change": "reset by mail"} if asked().is_page and asked().user is None else {}
        log.record_about(user, Action.PASSWORD, detail=by_mail)
    email = changes.pop("email", None)
    if email is not None and not asked().route.startswith(ADDRESS_PAGES):
        log.record_about(user, Action.EMAIL, detail={"personal": {"email": email}})
    _record_changes(user, Action.CHANGED, changes, personal=PERSONAL)


def _is_same_password(user: User, before: str) -> bool:
    """Whether it only got a newer kind of hash, as Django does at a sign-in: unasked, and the old one was outdated."""
    is_given = getattr(user, "_password", None) is not None
    if is_given or not is_password_usable(before) or not is_password_usable(user.password):
        return False
    preferred = get_hasher()
    try:
        used = identify_hasher(before)
    except ValueError:  # a hash nobody can check
        return False
    return used.algorithm != preferred.algorithm or preferred.must_update(before)


def user_deleted(instance: User, **_: Any) -> None:
    """Told first, so that this entry gets the pseudonym too."""
    log.record_about(instance, Action.DELETED)
    log.pseudonymise(instance)


def rights_changed(
    sender: Any, instance: Model, action: str, reverse: bool, pk_set: Collection[Any] | None, **_: Any
) -> None:
    """Of people: their groups and permissions. Of groups: their permissions. From either side."""
    if action not in ("post_add", "pre_remove", "pre_clear"):  # when the rows are there that are meant
        return
    owner, right = _ends_of(sender)
    near, far = (right, owner) if reverse else (owner, right)
    found = sender._base_manager.filter(**{near: instance.pk})
    if pk_set is not None:
        found = found.filter(**{f"{far}__in": pk_set})
    paths = [owner, "permission__content_type"] if right == "permission" else [owner, right]
    rights: dict[Any, list[str]] = defaultdict(list)
    for row in found.select_related(*paths).order_by(f"{owner}_id", f"{right}_id"):
        rights[getattr(row, owner)].append(_shown(getattr(row, right)))
    for of_whom, names in rights.items():
        detail = {f"{right}s_{'added' if action == 'post_add' else 'removed'}": names}
        if isinstance(of_whom, User):
            log.record_about(of_whom, Action.CHANGED, detail=detail)
        else:
            log.record(Action.GROUP_CHANGED, target=of_whom.name, detail=detail)


def _ends_of(through: Any) -> tuple[str, str]:
    """The columns of such a row: whose right it is, and which."""
    names = [field.name for field in through._meta.concrete_fields if field.is_relation]
    return ("user" if "user" in names else "group", "permission" if "permission" in names else "group")


def _shown(right: Any) -> str:
    return right.name if isinstance(right, Group) else f"{right.content_type.app_label}.{right.codename}"


# -- groups and rules


def group_saved(group: Group, changes: Changes, is_new: bool) -> None:
    detail: dict[str, Any] = {"change": "made"} if is_new else {"changes": changes}
    log.record(Action.GROUP_CHANGED, target=group.name, detail=detail)


def group_deleted(instance: Group, **_: Any) -> None:
    detail = {"change": "deleted", "members": User.objects.filter(groups=instance).count()}
    log.record(Action.GROUP_CHANGED, target=instance.name, detail=detail)


def rules_saved(rules: Any, changes: Changes, is_new: bool) -> None:
    if changes:
        _record_rules(rules, {"changes": changes})


def rules_deleted(sender: type[Model], instance: Any, origin: Any, **_: Any) -> None:
    if _is_meant(sender, origin):
        _record_rules(instance, {"change": "deleted"})


def _record_rules(rules: Any, detail: dict[str, Any]) -> None:
    if hasattr(rules, "user_id"):
        log.record_about(rules.user, Action.RULES_CHANGED, detail=detail)
    else:
        group = f"group {rules.group.name}" if hasattr(rules, "group_id") else "site"
        log.record(Action.RULES_CHANGED, target=group, detail=detail)


# -- keys, factors, links


def key_saved(key: ApiKey, changes: Changes, is_new: bool) -> None:
    if is_new:
        facts = {"scopes": key.scopes, "expires_at": changes.get("expires_at", [None, None])[1]}
        detail = {**facts, "personal": {"name": key.name}}
        log.record_about(key.user, Action.KEY_CREATED, target=_named(key), detail=detail)
    elif changes.get("revoked_at", [""])[0] is None:
        log.record_about(key.user, Action.KEY_REVOKED, target=_named(key))
    else:
        _record_changes(key.user, Action.KEY_CHANGED, changes, personal=("name",), target=_named(key))


def key_deleted(instance: ApiKey, origin: Any, **_: Any) -> None:
    if _is_meant(ApiKey, origin) and instance.revoked_at is None:
        log.record_about(instance.user, Action.KEY_REVOKED, target=_named(instance), detail={"change": "deleted"})


def _named(key: ApiKey) -> str:
    return f"{key.shown}…"


def factor_saved(instance: Any, created: bool, raw: bool, **_: Any) -> None:
    if created and not raw and not _comes_along(instance):
        log.record_about(instance.user, Action.FACTOR_ADDED, target=instance.type)


def factor_deleted(sender: type[Model], instance: Any, origin: Any, **_: Any) -> None:
    if _is_meant(sender, origin) and not _comes_along(instance):
        log.record_about(instance.user, Action.FACTOR_REMOVED, target=instance.type)


def _comes_along(factor: Any) -> bool:
    """Recovery codes come and go with the other factors; that they are made anew is told by allauth."""
    return bool(factor.type == "recovery_codes")


def outside_account_saved(instance: Any, created: bool, raw: bool, **_: Any) -> None:
    if created and not raw:
        log.record_about(instance.user, Action.CONNECTED, target=instance.provider)


def outside_account_deleted(sender: type[Model], instance: Any, origin: Any, **_: Any) -> None:
    if _is_meant(sender, origin):
        log.record_about(instance.user, Action.DISCONNECTED, target=instance.provider)


def link_saved(link: Any, changes: Changes, is_new: bool) -> None:
    """Never with its address: whoever knows that sees what it shows."""
    if is_new:
        facts = {"scope": link.scope, "expires_at": changes.get("expires_at", [None, None])[1]}
        detail = {**facts, "conversation": str(link.conversation_id)}
        log.record_about(link.owner, Action.LINK_CREATED, target=str(link.pk), detail=detail)
    elif changes.get("revoked_at", [""])[0] is None:
        log.record_about(link.owner, Action.LINK_REVOKED, target=str(link.pk))
    else:
        _record_changes(link.owner, Action.LINK_CHANGED, changes, target=str(link.pk))


def _record_changes(
    person: User, action: Action, changes: Changes, *, personal: Collection[str] = (), target: str = ""
) -> None:
    """One entry, or none without a change; what says who somebody is stands apart in it."""
    parts = {
        "changes": {name: values for name, values in changes.items() if name not in personal},
        "personal": {name: values for name, values in changes.items() if name in personal},
    }
    if changes:
        log.record_about(person, action, target=target, detail={name: part for name, part in parts.items() if part})
