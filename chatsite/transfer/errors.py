"""Why a file is not imported: always the whole of it, and always with the place that is wrong."""

from __future__ import annotations

from chatsite.chat.errors import SendRefused


class ImportRefused(SendRefused):
    """Nothing of the file was imported."""

    code = "import_refused"

    def __init__(self, message: str, *, http_status: int = 400) -> None:
        super().__init__(message)
        self.http_status = http_status
