"""Ending asyncio tasks for certain."""

from __future__ import annotations

import asyncio
from typing import Any

AGAIN_SECONDS = 0.1


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel the tasks and wait until they have ended, however they do; None and ended ones are passed over.

    One cancellation is not enough: redis-py swallows one that comes while it connects, and the task would go on.
    """
    pending = {task for task in tasks if task is not None and task is not asyncio.current_task()}
    ended = set(pending)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=AGAIN_SECONDS)
    for task in ended:
        if not task.cancelled():
            task.exception()  # looked at: nobody else will
