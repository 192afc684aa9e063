"""What the site itself can be told: limits, defaults, sign-up, secrets of the ops pages. Read once, checked, frozen.

Django's own settings (database, cookies, mail) are in `settings`; what workers can be told is in `inference.config`.
Apps read it as `settings.SMOLFLEET`. Knows nothing of Django.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from chatsite import outside_config
from chatsite.outside_config import OutsideConfig
from inference.config import Environment
from inference.errors import ConfigError

TOOLS = ("python", "time", "search_chats")


@dataclass(frozen=True, kw_only=True)
class SiteConfig:
    site_name: str = "SmolFleet"
    starters: tuple[str, ...] = (  # ideas for a first message, offered where a conversation begins
        "Explain how a hash map works, with a small example",
        "Write a polite note that moves a meeting to Friday",
        "Compare tea and coffee in a table",
    )
    default_model: str = ""  # catalog name new conversations use; "" = what a live worker serves
    model_titles: bool = True  # the model names conversations after their first answer, when nobody waits
    sign_up_open: bool = True  # False: only an admin makes accounts
    password_sign_in: bool = True  # False: people come by an outside account alone
    outside: OutsideConfig = field(
        default_factory=OutsideConfig
    )  # whose accounts people may sign in with, besides their own here
    max_message_chars: int = 100_000
    max_conversation_messages: int = 10_000
    max_active_per_user: int = 4  # answers being written or waiting at once in a user's chats
    max_active_per_key: int = 64  # requests of one user's API keys being answered at once
    max_requests_per_minute: int = 60  # sends of one user; 0 = no limit
    max_waiting: int = 1_000  # generations waiting for one model; beyond it a send is refused; 0 = no limit
    max_completion_tokens: int = 4_096  # of one answer
    max_streams_per_user: int = 32  # open SSE and WebSocket streams of one user in one web process
    stream_buffer_bytes: int = 256 * 1024  # a viewer that does not read costs at most this much
    max_file_bytes: int = 10 * 1024 * 1024  # of one upload
    max_file_chars: int = 400_000  # of the text read from one file
    max_files_per_message: int = 8
    max_pdf_pages: int = 500
    max_pdf_seconds: int = 20  # for reading one PDF
    max_import_bytes: int = 64 * 1024 * 1024  # of one file of conversations, as it comes and unpacked
    max_bodies_per_address: int = 64  # requests of one address whose body is still coming, in one web process
    max_body_bytes_at_once: int = 256 * 1024 * 1024  # of all bodies that are being read in one web process
    min_body_rate: int = 4_096  # bytes a second; a body that comes slower on average is given up
    slow_client_seconds: float = 30.0  # for the head of a request, and for the next piece of its body
    tools: tuple[str, ...] = TOOLS  # that chats may switch on; none: no switch is shown
    max_tool_seconds: int = 10  # of one call
    share_anyone: bool = True  # False: a link is of use to people signed in alone
    metrics_token: str = ""  # bearer token of /metrics; "" = loopback alone may read it

    @property
    def offers_sign_up(self) -> bool:
        """Whether a stranger may make an account with a password of its own."""
        return self.sign_up_open and self.password_sign_in

    @property
    def sign_in_providers(self) -> list[str]:
        """What the outside accounts are called that people may sign in with; empty when there are none."""
        return self.outside.names

    def replace(self, **changes: object) -> SiteConfig:
        """The same with `changes`; for tests."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def load(env: Mapping[str, str]) -> SiteConfig:
    """Read `env`.

    Raises:
        ConfigError: a value is not of its kind or out of range; the sentence begins with the name.
    """
    e = Environment(env)
    d = SiteConfig()
    outside = outside_config.load(e)
    password_sign_in = e.flag("PASSWORD_SIGN_IN", d.password_sign_in)
    if not password_sign_in and not outside.names:
        raise ConfigError("PASSWORD_SIGN_IN must be 1 where no other way to sign in is set: OIDC_ISSUER is empty.")
    return SiteConfig(
        site_name=e.text("SITE_NAME", d.site_name),
        starters=tuple(line.strip() for line in e.text("STARTERS", "|".join(d.starters)).split("|") if line.strip()),
        default_model=e.text("DEFAULT_MODEL", d.default_model),
        model_titles=e.flag("MODEL_TITLES", d.model_titles),
        sign_up_open=e.flag("SIGN_UP_OPEN", d.sign_up_open),
        password_sign_in=password_sign_in,
        outside=outside,
        max_message_chars=e.integer("MAX_MESSAGE_CHARS", d.max_message_chars, low=1, high=10_000_000),
        max_conversation_messages=e.integer(
            "MAX_CONVERSATION_MESSAGES", d.max_conversation_messages, low=2, high=1_000_000
        ),
        max_active_per_user=e.integer("MAX_ACTIVE_PER_USER", d.max_active_per_user, low=1, high=10_000),
        max_active_per_key=e.integer("MAX_ACTIVE_PER_KEY", d.max_active_per_key, low=1, high=10_000),
        max_requests_per_minute=e.integer("MAX_REQUESTS_PER_MINUTE", d.max_requests_per_minute, low=0, high=1_000_000),
        max_waiting=e.integer("MAX_WAITING", d.max_waiting, low=0, high=1_000_000),
        max_completion_tokens=e.integer("MAX_COMPLETION_TOKENS", d.max_completion_tokens, low=1, high=1_000_000),
        max_streams_per_user=e.integer("MAX_STREAMS_PER_USER", d.max_streams_per_user, low=1, high=100_000),
        stream_buffer_bytes=e.integer("STREAM_BUFFER_BYTES", d.stream_buffer_bytes, low=16_384, high=16_777_216),
        max_file_bytes=e.integer("MAX_FILE_BYTES", d.max_file_bytes, low=1_024, high=1_073_741_824),
        max_file_chars=e.integer("MAX_FILE_CHARS", d.max_file_chars, low=100, high=10_000_000),
        max_files_per_message=e.integer("MAX_FILES_PER_MESSAGE", d.max_files_per_message, low=0, high=100),
        max_pdf_pages=e.integer("MAX_PDF_PAGES", d.max_pdf_pages, low=1, high=100_000),
        max_pdf_seconds=e.integer("MAX_PDF_SECONDS", d.max_pdf_seconds, low=1, high=600),
        max_import_bytes=e.integer("MAX_IMPORT_BYTES", d.max_import_bytes, low=1_024, high=1_073_741_824),
        max_bodies_per_address=e.integer("MAX_BODIES_PER_ADDRESS", d.max_bodies_per_address, low=1, high=100_000),
        max_body_bytes_at_once=e.integer(
            "MAX_BODY_BYTES_AT_ONCE", d.max_body_bytes_at_once, low=1_048_576, high=1_099_511_627_776
        ),
        min_body_rate=e.integer("MIN_BODY_RATE", d.min_body_rate, low=1, high=1_000_000_000),
        slow_client_seconds=e.seconds("SLOW_CLIENT_SECONDS", d.slow_client_seconds, low=0.1, high=3_600.0),
        tools=_tools(e),
        max_tool_seconds=e.integer("MAX_TOOL_SECONDS", d.max_tool_seconds, low=1, high=600),
        share_anyone=e.flag("SHARE_ANYONE", d.share_anyone),
        metrics_token=e.text("METRICS_TOKEN", d.metrics_token),
    )


def _tools(e: Environment) -> tuple[str, ...]:
    names = e.words("TOOLS", TOOLS)
    if names == ("none",):
        return ()
    for name in names:
        if name not in TOOLS:
            raise ConfigError(f"TOOLS names {name!r}; there are {', '.join(TOOLS)}, or none.")
    return names
