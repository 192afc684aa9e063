"""Token bytes -> text, never half a character.

Owns the bytes that do not make a whole UTF-8 character yet. Knows nothing of tokens, tags or stop strings.
`output.deltas` calls it, in the thread of one generation.
"""

from __future__ import annotations

import codecs


class Detokenizer:
    """An incremental UTF-8 decoder for what a model writes.

    A byte that can never belong to a character becomes U+FFFD as soon as that is certain, and not before. NUL is
    removed: Postgres text cannot hold it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, piece: bytes) -> str:
        """The text that `piece` completes; its unfinished last character is kept for the next call."""
        return self._decoder.decode(piece).replace("\0", "")

    def flush(self) -> str:
        """No more bytes follow: U+FFFD for a character left unfinished, else nothing. Ready for new text after it."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest.replace("\0", "")
