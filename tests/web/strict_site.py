"""The web process with small limits and little patience, and what it costs: for tests of clients without manners."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.web.api_server import running
from tests.web.raw_client import Answer, RawClient

FILE_BYTES = 3 * 1024 * 1024  # more than Django keeps of a body in memory
SLOW_SECONDS = 3.0
FLAT_SECONDS = 30.0
MOST_MEMORY = 24 * 1024 * 1024  # what a few connections take anyway


@dataclass(frozen=True)
class StrictSite:
    url: str
    pid: int
    folder: Path  # where its temporary files go

    def ask(self, data: bytes) -> Answer:
        """What is answered to these bytes, in which $HOST is the site's own."""
        with RawClient(self.url) as client:
            client.say(data.replace(b"$HOST", client.host.encode()))
            return client.answer()

    @contextlib.contextmanager
    def costing_nothing(self) -> Iterator[None]:
        """Neither memory nor disk, at no time in the block."""
        before = self._memory("VmRSS")
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # the peak begins anew
        yield
        assert self._memory("VmHWM") - before < MOST_MEMORY
        assert self.disk() == 0

    def disk(self) -> int:
        """Bytes on disk in the folder, and in files the process has open there that have no name any more."""
        total = sum(path.stat().st_blocks for path in self.folder.rglob("*"))
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                if os.readlink(descriptor).startswith(str(self.folder)) and descriptor.stat().st_nlink == 0:
                    total += descriptor.stat().st_blocks
            except FileNotFoundError:
                continue  # closed meanwhile
        return total * 512

    def wait_until_flat(self) -> None:
        """Nothing of the process lies in the folder any more."""
        deadline = time.monotonic() + FLAT_SECONDS
        while self.disk():
            assert time.monotonic() < deadline, "files stay"
            time.sleep(0.02)

    def _memory(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(name))) * 1024


@contextlib.contextmanager
def strictly(database_name: str, folder: Path) -> Iterator[StrictSite]:
    environment = {
        "TMPDIR": str(folder),
        "MAX_FILE_BYTES": str(FILE_BYTES),
        "MAX_FILES_PER_MESSAGE": "1",
        "MAX_IMPORT_BYTES": str(FILE_BYTES),
        "SLOW_CLIENT_SECONDS": str(SLOW_SECONDS),
        "MAX_REQUESTS_PER_MINUTE": "0",
    }
    with running(database_name, **environment) as (url, pid):
        httpx.get(f"{url}/accounts/login/", timeout=60.0)  # templates are loaded
        yield StrictSite(url, pid, folder)
