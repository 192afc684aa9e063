"""What was done to accounts and rules: by whom, to whom, when, from where. Written once; never changed by anybody.

Rows outlive whom they tell of: when an account goes, its columns are emptied and a pseudonym takes the place of its
name. A trigger in Postgres (second migration) refuses every other change, and every deletion of what is younger than
`MIN_DAYS`, whoever asks. No row quotes what anybody wrote in a conversation.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Upper
from django.utils.translation import gettext_lazy as _

from chatsite.accounts.models import new_id

MIN_DAYS = 90  # no rule lets entries go sooner; the trigger knows the same number
NAME_CHARS = 150
TARGET_CHARS = 200


class Action(models.TextChoices):
    """The vocabulary: what can stand in the log."""

    SIGNED_IN = "account.signed_in", _("signed in")
    SIGN_IN_FAILED = "account.sign_in_failed", _("failed to sign in")
    SIGNED_OUT = "account.signed_out", _("signed out")
    CREATED = "account.created", _("account created")
    CHANGED = "account.changed", _("account changed")
    DELETED = "account.deleted", _("account deleted")
    CHANGE_REFUSED = "account.change_refused", _("change of rights or account refused")
    PASSWORD = "account.password", _("password changed")
    EMAIL = "account.email", _("e-mail address changed")
    CONNECTED = "account.connected", _("outside sign-in connected")
    DISCONNECTED = "account.disconnected", _("outside sign-in disconnected")
    FACTOR_ADDED = "factor.added", _("second factor added")
    FACTOR_REMOVED = "factor.removed", _("second factor removed")
    FACTOR_RESET = "factor.reset", _("recovery codes made anew")
    SESSION_ENDED = "session.ended", _("session ended")
    KEY_CREATED = "key.created", _("API key made")
    KEY_CHANGED = "key.changed", _("API key changed")
    KEY_REVOKED = "key.revoked", _("API key revoked")
    GROUP_CHANGED = "group.changed", _("group changed")
    RULES_CHANGED = "rules.changed", _("rules changed")
    DATA_EXPORTED = "data.exported", _("data exported")
    LINK_CREATED = "link.created", _("conversation shared by link")
    LINK_CHANGED = "link.changed", _("shared link changed")
    LINK_REVOKED = "link.revoked", _("shared link revoked")
    TRANSCRIPT_OPENED = "review.opened", _("conversation opened for review")
    CONVERSATIONS_DELETED = "retention.deleted", _("conversations deleted by age")
    RECORDS_CHANGED = "admin.changed", _("records changed in the admin")


class AuditEntry(models.Model):
    """`actor` did `action`, to `subject` where it concerns another person; empty: the site itself, or nobody known.

    The actor of a command is its name, as `command changepassword`: it was run by whoever owns the machine.

    `detail` has the columns that changed under "changes", each with its value before and after, and under "personal"
    what goes with the account: those that say who somebody is. Everything else stands beside these two.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    at = models.DateTimeField(auto_now_add=True)
    action = models.CharField(max_length=40, choices=Action.choices)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="audited_deeds"
    )
    actor_name = models.CharField(max_length=NAME_CHARS, blank=True)
    subject = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="audited")
    subject_name = models.CharField(max_length=NAME_CHARS, blank=True)
    target = models.CharField(max_length=TARGET_CHARS, blank=True, help_text="What it was done to: a key, a group.")
    detail = models.JSONField(default=dict, blank=True, help_text="What changed, never with a secret or a text.")
    ip = models.GenericIPAddressField(null=True)

    class Meta:
        ordering = ("-id",)
        verbose_name_plural = "audit entries"
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=("action", "-at")),
            models.Index(fields=("actor", "-at")),
            models.Index(fields=("subject", "-at")),
            models.Index(Upper("actor_name"), name="audit_actor_name"),  # as `iexact` asks
            models.Index(Upper("subject_name"), name="audit_subject_name"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.id}"
