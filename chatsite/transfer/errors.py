"""Why a file, or one conversation of it, is not imported."""

from __future__ import annotations

from chatsite.chat.errors import SendRefused


class ImportRefused(SendRefused):
    """Nothing of what was to be read was imported."""

    code = "import_refused"

    def __init__(self, message: str, *, http_status: int = 400) -> None:
        super().__init__(message)
        self.http_status = http_status
