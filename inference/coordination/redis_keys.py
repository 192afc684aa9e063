"""Names of every key and channel in Redis. Knows nothing else; everything that touches Redis uses it.

One hash tag, so that any script may touch any of them. The keys that only scripts use are named in `lua/prelude.lua`:
`leases` (zset: generation -> expiry in ms) and, per model, `room:<model>:…` (zsets `order`, `later`, `users`, `served`,
`queue:<user>`; hashes `running`, `facts`) and `prefix:<model>:<conversation>` (the worker that holds it).
"""

from __future__ import annotations

from uuid import UUID

PREFIX = "{smolfleet}:"
CELERY_PREFIX = f"{PREFIX}celery:"

ROOMS = f"{PREFIX}room:"  # how the keys of all waiting rooms begin
LEASES = f"{PREFIX}leases"
WORKERS = f"{PREFIX}workers"  # zset: worker name -> when its card expires, in ms
STOPS = f"{PREFIX}stops"  # channel: the id of a generation whose stop flag was set


def generation(generation_id: UUID) -> str:
    """Hash: the request and where it stands."""
    return f"{PREFIX}gen:{generation_id}"


def log(generation_id: UUID) -> str:
    """Stream: the generation's events; the id of an entry is `<seq>-0`."""
    return f"{PREFIX}log:{generation_id}"


def news(generation_id: UUID) -> str:
    """Channel: `<mark> <event as JSON>` of every entry, as it is written."""
    return f"{PREFIX}news:{generation_id}"


def order(model: str) -> str:
    """Zset: all that wait for the model, by the time in ms since which they wait."""
    return f"{PREFIX}room:{model}:order"


def worker(name: str) -> str:
    """String that expires: a worker's card."""
    return f"{PREFIX}worker:{name}"


def swap(worker: str) -> str:
    """String that expires: the order to a worker to serve another model. It lies there until the order has ended."""
    return f"{PREFIX}swap:{worker}"


def swap_report(order_id: UUID) -> str:
    """String that expires: how far the worker is with that order."""
    return f"{PREFIX}swap-report:{order_id}"


def kit(digest: str) -> str:
    """String: a prompt kit, by its sha256."""
    return f"{PREFIX}kit:{digest}"


SITE_QUEUE = "site"  # name of the Celery queue of the site worker


def unacked(side: str) -> str:
    """How the keys begin in which that side of Celery keeps what it has taken off its queues and not yet begun."""
    return f"unacked.{side}"


def queue(model: str) -> str:
    """Name of the Celery queue on which a model's doorbell rings."""
    return f"generate.{model}"


def bells(model: str) -> str:
    """The list in which that queue's messages lie while Redis is the broker."""
    return f"{CELERY_PREFIX}{queue(model)}"
