"""What becomes of access records when somebody's account goes: they stay, and no longer say who it was.

Called by `privacy.erasure`, in its transaction. Who opened whose conversation stays on record under the pseudonym that
the audit log uses; a trigger in Postgres allows this one change.
"""

from __future__ import annotations

from chatsite.accounts.models import User
from chatsite.review.models import AccessEvent


def forget(user: User, pseudonym: str) -> int:
    """Put `pseudonym` in place of the name of who leaves, empty their address and every link to them; of how many."""
    records = AccessEvent._base_manager  # its own refuses every change
    num_opened = records.filter(actor=user).update(actor=None, actor_name=pseudonym, ip=None)
    return num_opened + records.filter(subject=user).update(subject=None)
