"""What an authenticator app shows (RFC 6238): six digits of a secret, new every half minute."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time

PERIOD_SECONDS = 30


def code(secret: str, periods: int = 0) -> str:
    """The code of now, or of so many periods later: the site takes those beside it too, and each only once."""
    counter = int(time.time()) // PERIOD_SECONDS + periods
    digest = hmac.new(base64.b32decode(secret), counter.to_bytes(8, "big"), hashlib.sha1).digest()
    offset = digest[-1] & 15
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
    return f"{number % 1_000_000:06}"
