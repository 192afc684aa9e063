"""The JSON forms of what crosses processes, and the version of the protocol they follow.

Knows no message: `generation`, `cards` and `swap` mark theirs with `crosses_processes`, and whoever stores or
reads one calls `encode` and `decode`. Any thread.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from inference.errors import InvalidRequest

PROTOCOL_VERSION = 2  # rises with every change of a message; an older reader refuses a newer message by name

T = TypeVar("T", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}


def crosses_processes(kind: type[T]) -> type[T]:
    """Mark a struct that `decode` can read; a class decorator.

    Its decoder is made here, while its module is imported and one thread alone can be: when several threads meet a
    struct type for the first time at once, msgspec 0.22 crashes the process while it looks at the type's fields.
    """
    _decoders[kind] = msgspec.json.Decoder(kind)
    return kind


def encode(value: msgspec.Struct) -> bytes:
    """JSON form of any struct of the protocol."""
    return _encoder.encode(value)


def decode(data: bytes | str, kind: type[T]) -> T:
    """The struct of `kind`, one that crosses processes, that `data` holds.

    Raises:
        InvalidRequest: it is not JSON of that kind; the sentence names the field.
    """
    try:
        decoded: T = _decoders[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # not UTF-8; nested without end
        raise InvalidRequest(f"not a {kind.__name__}: {error}") from error
    return decoded
