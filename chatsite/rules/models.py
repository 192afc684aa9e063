"""What admins decide while the site runs: for everybody, for a group, for one person. What a deployment decides is in
`settings`.

An empty value says nothing, and the wider rule holds. How several groups of one person come together is said by
`effective`.
"""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from chatsite.audit.models import MIN_DAYS

MAX_DAYS = 36_500  # a hundred years; a date so long ago can still be reckoned


def _tokens(help_text: str) -> models.PositiveBigIntegerField[int | None, int | None]:
    return models.PositiveBigIntegerField(null=True, blank=True, help_text=help_text)


def _days(help_text: str, least: int = 1) -> models.PositiveIntegerField[int | None, int | None]:
    bounds = [MinValueValidator(least), MaxValueValidator(MAX_DAYS)]
    return models.PositiveIntegerField(null=True, blank=True, validators=bounds, help_text=help_text)


def _check_quotas(what: str, day: str, day_tokens: int | None, month_tokens: int | None) -> None:
    """Raise ValidationError, at the field `day`, where a day may cost more than the month that it lies in."""
    if day_tokens is not None and month_tokens is not None and day_tokens > month_tokens:
        raise ValidationError(
            {
                day: f"{what} of a day, {day_tokens:,} tokens, is above that of the month, {month_tokens:,}: nobody"
                " could ever use it up. Lower this one or raise the other."
            }
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
        permissions = [  # of no model: what the pages show is made of many
            ("view_fleet", "Can see queue, workers and services at /ops/"),
            ("view_analytics", "Can see who uses how much at /ops/analytics/"),
        ]
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="one_row_of_site_rules")]

    def __str__(self) -> str:
        return "Site rules"

    def clean(self) -> None:
        _check_quotas("The quota", "tokens_per_day", self.tokens_per_day, self.tokens_per_month)


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

    def clean(self) -> None:
        _check_quotas("The quota", "tokens_per_day", self.tokens_per_day, self.tokens_per_month)
        _check_quotas("The pool", "pool_per_day", self.pool_per_day, self.pool_per_month)


class UserRules(models.Model):
    """Goes before what the person's groups say."""

    user = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="rules")
    tokens_per_day = _tokens("Empty: as groups and site say.")
    tokens_per_month = _tokens("Empty: as groups and site say.")

    class Meta:
        verbose_name = verbose_name_plural = "rules of this person"

    def __str__(self) -> str:
        return f"Rules of {self.user_id}"

    def clean(self) -> None:
        _check_quotas("The quota", "tokens_per_day", self.tokens_per_day, self.tokens_per_month)
