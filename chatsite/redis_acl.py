"""Who may do what in Redis: the rules of one user for each kind of process, for an ACL file or `ACL SETUSER`.

A GPU worker reaches the answers, its own queues and what it says of itself; neither the cache nor what counts sign-ins,
nor a command that looks at all keys or changes the server. The site worker reaches all but the cache. Patterns of keys
hold inside scripts, too. GPU workers share one user: one of them can disturb the others' answers, and nothing else.

`python -m chatsite.redis_acl` prints `docker/redis/users.acl`, which has `@ROLE@` for each password's sha256 in hex.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from inference.coordination import redis_keys

ROLES = ("web", "site", "gpu")

_ASKING = "+ping +hello +auth +quit +time +client|setname +client|setinfo +client|getname +client|id"
_DATA = "+@string +@hash +@list +@set +@sortedset +@stream -@dangerous"
_KEYS = "+del +unlink +exists +type +expire +pexpire +ttl +pttl +persist"
_WORK = "+@transaction +eval +evalsha +script|load +script|exists +publish +subscribe +unsubscribe"
_COMMANDS = ("-@all", _DATA, _KEYS, _WORK, _ASKING)

# What scripts name as their key: the beginning of all others. Nothing lies there.
_SCRIPTS = f"~{redis_keys.PREFIX}"
_BINDINGS = ("_kombu.binding.", "_kombu.binding_permanent.")


def rules(role: str) -> tuple[str, ...]:
    """What the user of `role` may do, without its name and password."""
    return {"web": _web, "site": _site, "gpu": _gpu}[role]()


def lines(passwords: Mapping[str, str]) -> list[str]:
    """An ACL file: a user for each role of `passwords`, and none without a password."""
    return ["user default off", *(line(role, sealed(password)) for role, password in passwords.items())]


def sealed(password: str) -> str:
    """As Redis keeps it."""
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"


def line(role: str, secret: str) -> str:
    """One user, for an ACL file or a server's own configuration. `secret`: a `sealed` password."""
    return " ".join(("user", role, "on", secret, "resetkeys", "resetchannels", *rules(role)))


def template() -> str:
    """The ACL file for containers; `docker/redis/start.sh` puts sums of passwords in."""
    return "\n".join(("user default off", *(line(role, f"#@{role.upper()}@") for role in ROLES), ""))


def _web() -> tuple[str, ...]:
    return (f"~{redis_keys.PREFIX}*", f"&{redis_keys.PREFIX}*", *_COMMANDS, "+scan")


def _site() -> tuple[str, ...]:
    """Of what begins with c, which the cache does, its queues alone."""
    return (
        _SCRIPTS,
        f"~{redis_keys.PREFIX}[^c]*",
        f"~{redis_keys.CELERY_PREFIX}*",
        f"&{redis_keys.PREFIX}*",
        *_COMMANDS,
        "+scan",
    )


def _gpu() -> tuple[str, ...]:
    own = ("gen:*", "log:*", "room:*", "prefix:*", "leases", "workers", "worker:*", "swap:*", "swap-report:*", "kit:*")
    bindings = [
        f"{binding}{queue}" for binding in _BINDINGS for queue in (redis_keys.queue("*"), redis_keys.SITE_QUEUE)
    ]
    queues = (redis_keys.queue("*"), f"{redis_keys.unacked('generate')}*", *bindings)
    return (
        _SCRIPTS,
        *(f"~{redis_keys.PREFIX}{name}" for name in own),
        *(f"~{redis_keys.CELERY_PREFIX}{name}" for name in queues),
        f"%W~{redis_keys.CELERY_PREFIX}{redis_keys.SITE_QUEUE}*",  # it rings there, and reads no one else's bell
        f"&{redis_keys.PREFIX}news:*",
        f"&{redis_keys.STOPS}",
        *_COMMANDS,
    )


if __name__ == "__main__":
    print(template(), end="")
