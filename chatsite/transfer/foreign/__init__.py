"""Conversations from other programs' exports -> records. One module for each program, `tree` for what all share.

Each module says whether an item looks like its own (`knows`) and reads it (`read`), with the parts it could not take
counted by name. Bad values are refused with their place. Knows no database.
"""

from __future__ import annotations

from chatsite.transfer.foreign import chatgpt, claude, deepseek, librechat, open_webui
from chatsite.transfer.foreign.tree import Source

SOURCES: tuple[Source, ...] = (
    Source("deepseek", "DeepSeek", deepseek.knows, deepseek.read),  # before ChatGPT's, which look alike from without
    Source("chatgpt", "ChatGPT", chatgpt.knows, chatgpt.read),
    Source("claude", "Claude", claude.knows, claude.read),
    Source("librechat", "LibreChat", librechat.knows, librechat.read),
    Source("openwebui", "Open WebUI", open_webui.knows, open_webui.read),
)

__all__ = ("SOURCES", "Source")
