"""A PDF on standard input -> its text as JSON on standard output. A program of its own, run by `documents`.

Files come from anybody, and a PDF can be made to unpack to any size or to be read for ever: so this process may take so
much memory and so much time, and then the kernel ends it. Imports nothing of the site. Arguments: pages, characters and
seconds at most. The answer has `text`, or `error`: encrypted | pages (with `num_pages`) | chars | memory | damaged.
"""

from __future__ import annotations

import io
import json
import logging
import resource
import sys

MAX_MEMORY_BYTES = 1024 * 1024 * 1024


def text_of(data: bytes, max_pages: int, max_chars: int) -> dict[str, object]:
    import pypdf
    from pypdf.errors import DependencyError

    reader = pypdf.PdfReader(io.BytesIO(data))
    try:
        if reader.is_encrypted and not reader.decrypt(""):  # many are locked against changes alone
            return {"error": "encrypted"}
    except DependencyError:  # a cipher that needs another library
        return {"error": "encrypted"}
    if (num_pages := len(reader.pages)) > max_pages:
        return {"error": "pages", "num_pages": num_pages}
    pages: list[str] = []
    num_chars = 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        num_chars += len(pages[-1])
        if num_chars > max_chars:
            return {"error": "chars"}
    return {"text": "\n\n".join(filter(None, pages))}


def main() -> None:
    max_pages, max_chars, max_seconds = map(int, sys.argv[1:])
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (max_seconds, max_seconds + 1))
    logging.disable()  # what it says of a file quotes the file
    try:
        found = text_of(sys.stdin.buffer.read(), max_pages, max_chars)
    except MemoryError:
        found = {"error": "memory"}
    except Exception:  # noqa: BLE001  # the edge of this process; a broken file raises anything
        found = {"error": "damaged"}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
