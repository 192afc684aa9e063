"""One file from the Hugging Face hub, onto this machine: checked, resumable, one download at a time.

Owns the download and its sentences. A broken connection is taken up where it broke, within a call and at the next
start alike: huggingface_hub keeps no part of a file from one process to the next, so the bytes are gathered in a
`.part` file here, over its HTTP connection, and handed to its cache when they are whole. Knows nothing of models.
Called by the catalog; blocks.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from inference.errors import ModelFileError

log = structlog.get_logger(__name__)

SPARE_BYTES = 64 * 2**20  # left free on the disk
MAX_VAIN_TRIES = 5  # in a row, without a single byte
RETRY_SECONDS = 1.0  # after the first of them, twice that after the second, ...
REPORT_SECONDS = 10.0  # between two lines of progress, where nobody watches a terminal


@dataclass(frozen=True)
class Wanted:
    """`sha256` "" means: as the hub says."""

    repo: str
    file: str
    revision: str = "main"
    sha256: str = ""

    def __str__(self) -> str:
        return f"{self.repo}:{self.file}"


def cached(wanted: Wanted) -> Path | None:
    """The file in huggingface_hub's cache, if it is there. Asks no network."""
    from huggingface_hub import try_to_load_from_cache  # here: it takes 0.3 s to import and few starts need it
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(wanted.repo, wanted.file, revision=wanted.revision)
    except HFValidationError as error:
        raise ModelFileError(f"{wanted.repo!r} is no name of a hub repository (owner/name).") from error
    return Path(found) if isinstance(found, str) else None


def fetch(wanted: Wanted, *, folder: Path | None = None) -> Path:
    """Download `wanted` into `folder`, or into huggingface_hub's cache, and return its path. HF_TOKEN opens private
    repositories.

    Raises:
        ModelFileError: no network, no such repository or file, no access, no room, or another file than expected.
    """
    from huggingface_hub import constants, hf_hub_download, hf_hub_url
    from huggingface_hub.file_download import repo_folder_name

    with _in_words(wanted):
        url = hf_hub_url(wanted.repo, wanted.file, revision=wanted.revision)
        there = _look(url)
        expected = there.etag if re.fullmatch(r"[0-9a-f]{64}", there.etag) else ""
        if wanted.sha256 and expected and expected != wanted.sha256:
            raise ModelFileError(
                f"{wanted} is not the file expected: its sha256 at the hub is {expected}, not {wanted.sha256}."
            )
        if folder is not None:
            whole = folder / Path(wanted.file).name
        else:
            whole = (
                Path(constants.HF_HUB_CACHE)
                / repo_folder_name(repo_id=wanted.repo, repo_type="model")
                / "blobs"
                / there.etag
            )
        whole.parent.mkdir(parents=True, exist_ok=True)
        part = whole.with_name(f"{whole.name}.{there.etag[:16]}.part" if folder else f"{whole.name}.part")
        with _locked(part) as file:
            if not whole.exists():
                _gather(wanted, url, there, file)
                _check(wanted, part, wanted.sha256 or expected)
                os.replace(part, whole)
            else:
                part.unlink()
        log.info("model_downloaded", file=str(wanted), path=str(whole), size_bytes=whole.stat().st_size)
        if folder is not None:
            return whole
        return Path(hf_hub_download(wanted.repo, wanted.file, revision=wanted.revision))  # names what lies there now


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """`part`, open for this process alone. Several workers start at once: one downloads, the others wait here."""
    while True:
        with part.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                is_still_it = os.path.samestat(os.fstat(file.fileno()), part.stat())
            except FileNotFoundError:  # the one before has finished it, or thrown it away
                is_still_it = False
            if is_still_it:
                yield file
                return


@dataclass(frozen=True)
class _There:
    """What the hub says of a file."""

    etag: str  # sha256 of large files
    size_bytes: int


def _look(url: str) -> _There:
    from huggingface_hub import get_hf_file_metadata, get_token
    from huggingface_hub.errors import FileMetadataError

    facts = get_hf_file_metadata(url, token=get_token())
    if not facts.etag or not facts.commit_hash or facts.size is None:
        raise FileMetadataError("not a hub")
    return _There(facts.etag, facts.size)


def _gather(wanted: Wanted, url: str, there: _There, file: BinaryIO) -> None:
    """Append to `file` until it is as long as the hub says."""
    import httpx2

    have = file.seek(0, os.SEEK_END)
    if have > there.size_bytes:
        have = file.truncate(0)
    free = shutil.disk_usage(Path(file.name).parent).free
    if there.size_bytes - have + SPARE_BYTES > free:
        raise OSError(errno.ENOSPC, f"{there.size_bytes - have:,} bytes to go, {free:,} free")
    log.info("model_download", file=str(wanted), size_bytes=there.size_bytes, resumed_at=have, into=file.name)
    num_vain = 0
    with _progress(wanted, there.size_bytes, have) as progress:
        while have < there.size_bytes:
            try:
                _append(url, file, have, progress)
                error: Exception | None = None
            except httpx2.TransportError as broken:
                error = broken
            now = file.seek(0, os.SEEK_END)
            if now > there.size_bytes:
                file.truncate(0)
                raise OSError("more bytes came than the hub announced")
            num_vain = 0 if now > have else num_vain + 1
            have = now
            if have == there.size_bytes:
                break
            log.warning("model_download_broken", file=str(wanted), at=have, error=type(error).__name__)
            if num_vain >= MAX_VAIN_TRIES:
                raise error or OSError("the hub sends fewer bytes than it announced")
            time.sleep(RETRY_SECONDS * num_vain)


def _append(url: str, file: BinaryIO, start: int, progress: Any) -> None:
    from huggingface_hub import constants, get_token, utils

    tools: Any = utils  # its names are exported lazily, which mypy does not see
    headers = {**tools.build_hf_headers(token=get_token()), "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    with tools.http_stream_backoff(
        "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, retry_on_exceptions=()
    ) as response:
        tools.hf_raise_for_status(response)
        if start and response.status_code != 206:  # it begins anew, so must the file
            file.truncate(0)
            progress.update(-start)
        try:
            for chunk in response.iter_bytes():
                file.write(chunk)
                progress.update(len(chunk))
        finally:
            file.flush()


def _progress(wanted: Wanted, size_bytes: int, have: int) -> Any:
    if not sys.stderr.isatty():
        return _LoggedProgress(total=size_bytes, initial=have)
    from huggingface_hub import utils

    bars: Any = utils
    return bars.tqdm(total=size_bytes, initial=have, unit="B", unit_scale=True, desc=Path(wanted.file).name)


def _check(wanted: Wanted, part: Path, sha256: str) -> None:
    if not sha256:
        log.warning("model_download_unchecked", file=str(wanted), reason="the hub gives no sha256 for it")
        return
    with part.open("rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != sha256:
        part.unlink()
        raise ModelFileError(f"{wanted} arrived damaged (its sha256 is {actual}, not {sha256}) and was removed.")


@contextmanager
def _in_words(wanted: Wanted) -> Iterator[None]:
    """Every way a download fails, as one sentence."""
    import httpx2
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        DisabledRepoError,
        EntryNotFoundError,
        FileMetadataError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub = constants.ENDPOINT
    unreachable = (
        f"{wanted} is not on this machine and {hub} cannot be reached. Download the file elsewhere and give its path "
        "as MODEL, or try again online; what came so far is kept."
    )
    try:
        yield
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise ModelFileError(unreachable) from error
    except HFValidationError as error:
        raise ModelFileError(f"{wanted.repo!r} is no name of a hub repository (owner/name).") from error
    except GatedRepoError as error:
        raise ModelFileError(
            f"{wanted.repo} asks for consent at {hub}: accept its terms there and set HF_TOKEN to a token of that user."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelFileError(f"{wanted.repo} has no revision {wanted.revision!r} at {hub}.") from error
    except DisabledRepoError as error:
        raise ModelFileError(f"{wanted.repo} was disabled at {hub}.") from error
    except RepositoryNotFoundError as error:
        raise ModelFileError(
            f"{hub} knows no repository {wanted.repo}; if it is private, set HF_TOKEN to a token that may read it."
        ) from error
    except EntryNotFoundError as error:
        raise ModelFileError(f"{wanted.repo} has no file {wanted.file} at {hub}.") from error
    except FileMetadataError as error:
        raise ModelFileError(f"What answers at {hub} is no hub: it says neither size nor version of a file.") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ModelFileError(
                f"{hub} refuses {wanted} ({status}): set HF_TOKEN to a token that may read it."
            ) from error
        raise ModelFileError(f"{hub} answers {status} to {wanted}; what came so far is kept, try again.") from error
    except httpx2.TransportError as error:
        raise ModelFileError(unreachable) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelFileError(
                f"There is no room on the disk for {wanted} ({error.strerror}); what came so far is kept."
            ) from error
        reason = error.strerror or str(error)
        raise ModelFileError(f"{wanted} could not be downloaded: {reason}; what came so far is kept.") from error


class _LoggedProgress:
    """A progress bar in lines of a log."""

    def __init__(self, *, total: int, initial: int) -> None:
        self._total = total
        self._done = initial
        self._reported_at = time.monotonic()

    def update(self, num_bytes: int) -> None:
        self._done += num_bytes
        if time.monotonic() - self._reported_at >= REPORT_SECONDS:
            self._reported_at = time.monotonic()
            self._report()

    def __enter__(self) -> _LoggedProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._report()

    def _report(self) -> None:
        percent = 100 * self._done // self._total if self._total else None
        log.info("model_download_progress", percent=percent, received_bytes=self._done, size_bytes=self._total)
