"""Deeds that the audit log must tell: what admins, commands and code do to accounts, groups, rules and records."""

from __future__ import annotations

from collections.abc import Callable

from allauth.account.models import EmailAddress
from django.contrib.auth.models import Permission
from django.core.management import call_command

from chatsite.audit.models import Action
from chatsite.audit.origin import asked_by
from chatsite.rules.models import GroupRules, SiteRules, UserRules
from tests.web.auditing import ADDRESS, PASSWORD, Deeds, World, admin_user_form, second_address

deeds = Deeds()


@deeds.add((Action.CREATED, "root", "carol", ""))
def an_account_that_the_admin_makes(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    form = {"username": "carol", "usable_password": "true", "password1": PASSWORD, "password2": PASSWORD}
    return lambda: page.post("/admin/accounts/user/add/", form)


@deeds.add((Action.CREATED, "", "carol", ""), ip=None)
def an_admin_that_the_command_makes(world: World) -> Callable[[], object]:
    options = {"username": "carol", "email": "c@example.org", "interactive": False, "verbosity": 0}
    return lambda: call_command("createsuperuser", **options)


@deeds.add((Action.CHANGED, "root", "alice", ""))
def a_role_that_the_admin_gives(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, is_staff=True)
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deeds.add((Action.CHANGED, "root", "alice", ""))
def an_account_that_the_admin_switches_off(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, is_active=False)
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deeds.add((Action.CHANGED, "root", "alice", ""))
def a_group_that_the_admin_gives(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice, groups=[world.group()])
    return lambda: page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form)


@deeds.add()
def saving_a_person_in_the_admin_unchanged(world: World) -> Callable[[], object]:
    page, form = world.browser(world.root), admin_user_form(world.alice)

    def do() -> None:
        assert page.post(f"/admin/accounts/user/{world.alice.pk}/change/", form).status_code == 302

    return do


@deeds.add((Action.CHANGED, "", "alice", ""), ip=None)
def a_group_taken_by_code(world: World) -> Callable[[], object]:
    group = world.group()
    world.alice.groups.add(group)
    return lambda: world.alice.groups.set([])


@deeds.add()
def a_group_taken_that_was_never_given(world: World) -> Callable[[], object]:
    group = world.group()
    return lambda: (world.alice.groups.remove(group), world.alice.groups.clear())


@deeds.add((Action.CHANGED, "", "root", ""), (Action.CHANGED, "", "alice", ""), ip=None)
def members_added_from_the_groups_side(world: World) -> Callable[[], object]:
    group = world.group()
    return lambda: group.user_set.add(world.alice, world.root)  # type: ignore[attr-defined]


@deeds.add((Action.CHANGED, "", "alice", ""), ip=None)
def a_permission_given_by_code(world: World) -> Callable[[], object]:
    permission = Permission.objects.get(codename="view_auditentry")
    return lambda: world.alice.user_permissions.add(permission)


@deeds.add((Action.GROUP_CHANGED, "", "", "Careful"), ip=None)
def a_group_made(world: World) -> Callable[[], object]:
    return world.group


@deeds.add((Action.GROUP_CHANGED, "", "", "Careless"), ip=None)
def a_group_named_anew(world: World) -> Callable[[], object]:
    group = world.group()
    group.name = "Careless"
    return group.save


@deeds.add((Action.GROUP_CHANGED, "", "", "Careful"), ip=None)
def a_permission_taken_from_a_group(world: World) -> Callable[[], object]:
    group = world.group()
    group.permissions.add(Permission.objects.get(codename="view_auditentry"))
    return group.permissions.clear


@deeds.add((Action.GROUP_CHANGED, "root", "", "Careful"))
def a_group_that_the_admin_deletes(world: World) -> Callable[[], object]:
    group, page = world.group(), world.browser(world.root)
    GroupRules.objects.create(group=group, retention_days=7)
    return lambda: page.post(f"/admin/auth/group/{group.pk}/delete/", {"post": "yes"})


@deeds.add((Action.RULES_CHANGED, "", "", "site"), ip=None)
def rules_of_the_site(world: World) -> Callable[[], object]:
    return lambda: SiteRules(id=1, audit_days=100).save()


@deeds.add((Action.RULES_CHANGED, "", "", "group Careful"), ip=None)
def rules_of_a_group(world: World) -> Callable[[], object]:
    group = world.group()
    return lambda: GroupRules.objects.create(group=group, tokens_per_day=5)


@deeds.add((Action.RULES_CHANGED, "", "alice", ""), ip=None)
def rules_of_a_person_deleted(world: World) -> Callable[[], object]:
    return UserRules.objects.create(user=world.alice, tokens_per_day=5).delete


@deeds.add((Action.TRANSCRIPT_OPENED, "root", "alice", "…"))
def opening_a_conversation_of_another(world: World) -> Callable[[], object]:
    conversation, page = world.talked(), world.browser(world.root)
    return lambda: page.post(f"/review/{conversation.pk}/", {"reason": "Report 4711"})


@deeds.add((Action.RECORDS_CHANGED, "root", "", "email address …"))
def a_row_of_something_else_changed_in_the_admin(world: World) -> Callable[[], object]:
    second, page = second_address(world), world.browser(world.root)
    form = {"user": str(world.alice.pk), "email": "third@example.org"}
    return lambda: page.post(f"/admin/account/emailaddress/{second.pk}/change/", form)


@deeds.add((Action.RECORDS_CHANGED, "root", "", "email address …"))
def a_single_row_marked_and_deleted_in_the_admin(world: World) -> Callable[[], object]:
    second, page = second_address(world), world.browser(world.root)
    marked = {"action": "delete_selected", "_selected_action": [str(second.pk)], "post": "yes"}
    return lambda: page.post("/admin/account/emailaddress/", marked)


@deeds.add((Action.RECORDS_CHANGED, "root", "", "email addresses"))
def many_rows_deleted_at_once_in_the_admin(world: World) -> Callable[[], object]:
    second_address(world)
    page = world.browser(world.root)
    marked = {"action": "delete_selected", "_selected_action": [row.pk for row in EmailAddress.objects.all()]}

    def do() -> None:
        assert b"Are you sure" in page.post("/admin/account/emailaddress/", marked).content
        page.post("/admin/account/emailaddress/", {**marked, "post": "yes"})
        assert not EmailAddress.objects.exists()

    return do


@deeds.add((Action.DATA_EXPORTED, "root", "", "audit log"))
def taking_the_log_away(world: World) -> Callable[[], object]:
    page = world.browser(world.root)
    return lambda: page.post("/ops/audit/csv/", {"person": "alice"})


@deeds.add((Action.DELETED, "root", "…", ""))
def an_account_that_is_deleted(world: World) -> Callable[[], object]:
    with asked_by(world.root, ADDRESS):
        return lambda: asked_by_root(world, world.alice.delete)


def asked_by_root(world: World, do: Callable[[], object]) -> None:
    with asked_by(world.root, ADDRESS):
        do()
