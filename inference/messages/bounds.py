"""How long and how large what a worker says of itself may be. For who reads: what is beyond them is no message.

Pages, terminals and columns of a database take what is within. Knows no message; `cards` and `swap` use them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

NO_CONTROLS = r"^[^\x00-\x1f\x7f]*\Z"

Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=NO_CONTROLS)]
ModelName = Annotated[str, Meta(min_length=1, max_length=100, pattern=NO_CONTROLS)]  # as long as a row's
ModelNameOrNone = Annotated[str, Meta(max_length=100, pattern=NO_CONTROLS)]
Label = Annotated[str, Meta(max_length=400, pattern=NO_CONTROLS)]
Sentence = Annotated[str, Meta(max_length=4_000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*\Z")]
Sentences = Annotated[tuple[Sentence, ...], Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Slots = Annotated[int, Meta(ge=0, le=4_096)]
Tokens = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
