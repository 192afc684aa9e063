"""What people have used: sums that outlive the conversations they came from. No text, no ids of answers.

Quotas of groups, the page of one's own usage and the analytics of staff all read the days of the ledger, so that they
never disagree; the quota of one person goes by days of their own.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models

from chatsite.accounts.models import ApiKey


class UsageDay(models.Model):
    """Sums of one person's ended answers of one day (in TIME_ZONE), by model, source and API key."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="usage_days")
    day = models.DateField()
    model = models.CharField(max_length=100)
    source = models.CharField(max_length=9, help_text="As a generation's.")
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.SET_NULL, related_name="usage_days")
    num_answers = models.PositiveIntegerField(default=0)
    num_failed = models.PositiveIntegerField(default=0)
    num_stopped = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    cached_tokens = models.PositiveBigIntegerField(default=0, help_text="Of the prompts; they cost nothing.")
    completion_tokens = models.PositiveBigIntegerField(default=0)
    charged_tokens = models.PositiveBigIntegerField(default=0, help_text="What counts against a quota.")
    decode_seconds = models.FloatField(default=0.0)

    class Meta:
        ordering = ("-day",)
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(
                fields=("user", "day", "model", "source", "api_key"), nulls_distinct=False, name="one_row_of_usage"
            )
        ]
        indexes = [models.Index(fields=("day",))]

    def __str__(self) -> str:
        return f"{self.user_id} {self.day} {self.model}"


class OwnDay(models.Model):
    """What one person's answers cost on one day of theirs: the sums that their own quota goes by.

    Days follow the person's time zone, but a day that has begun keeps its end whatever zone they choose meanwhile, and
    none comes twice: see `own_days`.
    """

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="own_days")
    day = models.DateField()
    begun_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    charged_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ("-day",)
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=("user", "day"), name="one_row_of_own_day")]

    def __str__(self) -> str:
        return f"{self.user_id} {self.day}"
