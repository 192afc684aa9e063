"""What admins decide while the site runs: for everybody, for a group, for one person. What a deployment decides is in
`settings`.

An empty value says nothing, and the wider rule holds. How several groups of one person come together is said by
`effective`.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.validators import MinValueValidator
from django.db import models

from chatsite.audit.models import MIN_DAYS


def _tokens(help_text: str) -> models.PositiveBigIntegerField[int | None, int | None]:
    return models.PositiveBigIntegerField(null=True, blank=True, help_text=help_text)


def _days(help_text: str, least: int = 1) -> models.PositiveIntegerField[int | None, int | None]:
    return models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(least)], help_text=help_text
    )


class SiteRules(models.Model):
    """One row, or none while nobody has decided anything: see `effective.site_rules`."""

    class Review(models.TextChoices):
        OFF = "off", "Nobody reads conversations of others"
        REPORTED = "reported", "Only conversations with an answer its owner has reported, with a reason"
        REASON = "reason", "Any conversation, each time with a reason"

    class TwoFactor(models.TextChoices):
        NOBODY = "nobody", "Nobody must have a second factor, unless a group says so"
        STAFF = "staff", "Staff must"
        EVERYBODY = "everybody", "Everybody must"

    id = models.SmallAutoField(primary_key=True)
    review_policy = models.CharField(max_length=8, choices=Review.choices, default=Review.REASON)
    two_factor = models.CharField(max_length=9, choices=TwoFactor.choices, default=TwoFactor.NOBODY)
    tokens_per_day = _tokens("Of one person; empty: no limit.")
    tokens_per_month = _tokens("Of one person; empty: no limit.")
    retention_days = _days("Conversations go so long after their last message; empty: they stay.")
    key_days = _days("API keys live so long at most; empty: as long as their owner says.")
    audit_days = _days("Audit entries go so long after they were made; empty: they stay.", MIN_DAYS)

    class Meta:
        verbose_name = verbose_name_plural = "site rules"
        default_permissions = ("view", "change")
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_row_of_site_rules")]

    def __str__(self) -> str:
        return "Site rules"


class GroupRules(models.Model):
    group = models.OneToOneField(Group, on_delete=models.CASCADE, related_name="rules")
    requires_two_factor = models.BooleanField(default=False, help_text="Its members must have a second factor.")
    tokens_per_day = _tokens("Of each member; empty: as the site says.")
    tokens_per_month = _tokens("Of each member; empty: as the site says.")
    pool_per_day = _tokens("Of all members together; empty: no limit.")
    pool_per_month = _tokens("Of all members together; empty: no limit.")
    retention_days = _days("Of its members' conversations; empty: as the site says.")

    class Meta:
        verbose_name = verbose_name_plural = "group rules"

    def __str__(self) -> str:
        return f"Rules of {self.group}"


class UserRules(models.Model):
    """Goes before what the person's groups say."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="rules")
    tokens_per_day = _tokens("Empty: as groups and site say.")
    tokens_per_month = _tokens("Empty: as groups and site say.")

    class Meta:
        verbose_name = verbose_name_plural = "rules of this person"

    def __str__(self) -> str:
        return f"Rules of {self.user_id}"
