"""What the site worker does for the operator."""

from __future__ import annotations

from celery import shared_task

from chatsite.ops import heartbeat


@shared_task(name="ops.heartbeat", ignore_result=True)  # type: ignore[untyped-decorator]
def beat() -> None:
    heartbeat.beat()
