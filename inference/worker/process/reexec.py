"""The worker's next process image: itself again, with another model.

A fresh image is the one way that surely gives all memory back, on the host and on the device, while whoever supervises
the process keeps its pid. Owns what one image leaves for the next (`WORKER_HANDOVER`), and the exec. Knows no Redis.
Called by `worker.lifecycle`, in the main thread.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import msgspec

from inference.config import InferenceConfig
from inference.errors import ConfigError

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Handover(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an image should know of the one before.

    `order` is the order it carries out. `previous` is the MODEL to go back to if its own cannot be loaded; "" where it
    already is that model, and `failure` then says why the ordered one is not served.
    """

    order: UUID
    previous: str = ""
    failure: str = ""


def handover_of(config: InferenceConfig) -> Handover | None:
    """Raises ConfigError: somebody else set it."""
    if not config.handover:
        return None
    try:
        return _decoder.decode(config.handover)
    except msgspec.DecodeError as error:
        raise ConfigError(f"WORKER_HANDOVER is the worker's own and must not be set: {error}.") from error


def become(model: str, handover: Handover, config: InferenceConfig, *, is_asked_to_stop: Callable[[], bool]) -> None:
    """Replace the process by a fresh image of itself that serves `model`, under the same name. Returns only when it was
    asked to stop; from here on a stop signal ends it at once, for it serves nobody.

    Raises OSError: it cannot be executed again.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # the handler's work would be lost with this image
    if is_asked_to_stop():
        return
    for entry in Path("/proc/self/fd").iterdir():  # a device left open would keep its memory
        if entry.name.isdigit() and int(entry.name) > 2:
            _close_at_exec(int(entry.name))
    env = {
        **os.environ,
        "MODEL": model,
        "WORKER_NAME": config.worker_name,
        "WORKER_HANDOVER": msgspec.json.encode(handover).decode(),
    }
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], env)


def _close_at_exec(number: int) -> None:
    try:
        os.set_inheritable(number, False)
    except OSError:  # the listing's own, closed by now, or another thread's
        return


_decoder = msgspec.json.Decoder(Handover)
