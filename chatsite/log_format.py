"""How this site logs: structlog and the standard library through one formatter, to standard error.

`text` is for people, `json` one object a line. Nothing that people wrote to each other or to a model is ever logged.
"""

from __future__ import annotations

import sys
from typing import Any

import structlog


def configure(*, level: str, style: str) -> dict[str, Any]:
    """Configure structlog and return Django's LOGGING."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    if style == "json":
        last: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # Not the default formatter: it prints local variables, which hold what people wrote, and takes seconds for it.
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": [*shared, structlog.stdlib.ExtraAdder()],
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"level": level, "propagate": True, "handlers": []},
            "django.server": {"level": level, "propagate": True, "handlers": []},
            "django.channels.server": {"level": "WARNING", "propagate": True, "handlers": []},
            "daphne": {"level": "WARNING"},
            "asyncio": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},  # every sweep and heartbeat would be two lines
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.beat": {"level": "WARNING"},
            "psycopg.pool": {"level": "ERROR"},  # it warns at every try; whoever needed the connection says it once
            "markdown_it": {"level": "WARNING"},
        },
    }
