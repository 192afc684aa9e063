"""What the site worker does for privacy: once an hour, what is too old goes."""

from __future__ import annotations

from celery import shared_task

from chatsite.privacy import retention


@shared_task(name="privacy.retain", ignore_result=True)  # type: ignore[untyped-decorator]
def retain() -> None:
    retention.retain()
