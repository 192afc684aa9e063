"""Exports of other programs as they write them, made by hand: small, with a branch, a tool, something unknown."""

from __future__ import annotations

from typing import Any

EMPTY_ROOT = "00000000-0000-0000-0000-000000000000"


def chatgpt() -> list[dict[str, Any]]:
    def node(key: str, parent: str | None, message: dict[str, Any] | None) -> dict[str, Any]:
        return {"id": key, "parent": parent, "children": [], "message": message}

    def said(role: str, at: float, *parts: Any, kind: str = "text", **metadata: Any) -> dict[str, Any]:
        return {
            "id": "x",
            "author": {"role": role, "name": None, "metadata": {}},
            "create_time": at,
            "update_time": None,
            "content": {"content_type": kind, "parts": list(parts)},
            "status": "finished_successfully",
            "end_turn": True,
            "weight": 1.0,
            "recipient": "all",
            "metadata": metadata,
        }

    thoughts = said("assistant", 1_700_000_002.5, kind="thoughts", model_slug="o-model")
    thoughts["content"] = {"content_type": "thoughts", "thoughts": [{"summary": "s", "content": "let me think"}]}
    search = said("assistant", 1_700_000_003.0, "search(cats)", kind="code")
    search["recipient"] = "browser"
    mapping = [
        node("root", None, None),
        node("sys", "root", said("system", 1_700_000_000.0, "")),
        node("hidden", "sys", said("user", 1_700_000_000.5, "profile", kind="user_editable_context")),
        node("q1", "hidden", said("user", 1_700_000_001.5, "How many legs has a cat?")),
        node("t1", "q1", thoughts),
        node("c1", "t1", search),
        node("r1", "c1", said("tool", 1_700_000_003.5, "four", kind="text")),
        node("a1", "r1", said("assistant", 1_700_000_004.25, "Four.", model_slug="o-model")),
        node(
            "q2",
            "a1",
            said(
                "user",
                1_700_000_010.0,
                {"content_type": "image_asset_pointer"},
                "And this one?",
                kind="multimodal_text",
            ),
        ),
        node("a2", "q2", said("assistant", 1_700_000_011.0, "It has\x00 none.", model_slug="o-model")),
        node("a2b", "q2", said("assistant", 1_700_000_020.0, "Three.", model_slug="other")),
    ]
    return [
        {
            "title": "Cats & <legs>",
            "create_time": 1_700_000_000.0,
            "update_time": 1_700_000_020.0,
            "mapping": {entry["id"]: entry for entry in mapping},
            "current_node": "a2",
            "conversation_id": "11111111-2222-3333-4444-555555555555",
            "is_archived": True,
        }
    ]


def librechat(*, is_tree: bool = False) -> dict[str, Any]:
    def said(key: str, parent: str, text: str, is_user: bool, at: str, **more: Any) -> dict[str, Any]:
        return {
            "messageId": key,
            "parentMessageId": parent,
            "conversationId": "libre-1",
            "sender": "User" if is_user else "GPT",
            "text": text,
            "isCreatedByUser": is_user,
            "createdAt": at,
            **more,
        }

    thought = [
        {"type": "think", "think": "hm"},
        {"type": "tool_call", "tool_call": {}},
        {"type": "text", "text": "Hi."},
    ]
    q1 = said("m1", EMPTY_ROOT, "Hello", True, "2024-05-01T10:00:00.000Z")
    a1 = said(
        "m2",
        "m1",
        "",
        False,
        "2024-05-01T10:00:02.000Z",
        content=thought,
        model="gpt-x",
        feedback={"rating": "thumbsDown"},
    )
    a2 = said("m3", "m1", "Hello there", False, "2024-05-01T10:00:05.000Z", model="gpt-y", unfinished=True)
    head = {
        "conversationId": "libre-1",
        "endpoint": "openAI",
        "title": "Greeting",
        "exportAt": "10:10:10 GMT",
        "branches": True,
        "recursive": is_tree,
        "options": {"model": "gpt-x", "temperature": 0.5, "promptPrefix": "Be kind."},
    }
    if is_tree:
        return {**head, "messages": [{**q1, "children": [{**a1, "children": []}, {**a2, "children": []}]}]}
    return {**head, "messages": [q1, a1, a2]}


def open_webui() -> list[dict[str, Any]]:
    thought = (
        '<details type="reasoning" done="true" duration="3">\n<summary>Thought for 3 seconds</summary>\n'
        "&gt; 1 &lt; 2\n&gt; so\n</details>\n"
    )
    messages = {
        "u1": {
            "id": "u1",
            "parentId": None,
            "childrenIds": ["b1", "b2"],
            "role": "user",
            "content": "1 < 2?",
            "timestamp": 1715000000,
            "files": [{}],
        },
        "b1": {
            "id": "b1",
            "parentId": "u1",
            "childrenIds": [],
            "role": "assistant",
            "content": thought + "Yes.",
            "model": "llama",
            "timestamp": 1715000003,
            "done": True,
            "annotation": {"rating": 1, "reason": "accurate", "comment": "nice"},
        },
        "b2": {
            "id": "b2",
            "parentId": "u1",
            "childrenIds": [],
            "role": "assistant",
            "content": "Of course.",
            "model": "llama",
            "timestamp": 1715000009,
            "done": False,
        },
    }
    return [
        {
            "id": "owui-1",
            "user_id": "someone",
            "title": "Numbers",
            "chat": {
                "id": "",
                "title": "Numbers",
                "models": ["llama"],
                "params": {"system": "Be exact."},
                "history": {"messages": messages, "currentId": "b1"},
                "messages": [],
                "tags": [],
                "timestamp": 1715000000123,
            },
            "updated_at": 1715000010,
            "created_at": 1715000000,
            "share_id": None,
            "archived": False,
            "pinned": True,
            "meta": {"tags": ["maths"]},
            "folder_id": None,
        }
    ]


def claude() -> list[dict[str, Any]]:
    root = "00000000-0000-4000-8000-000000000000"

    def said(key: str, parent: str, sender: str, second: int, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
        texts = [part["text"] for part in content if part["type"] == "text"]
        return {
            "uuid": key,
            "text": "\n\n".join(texts),
            "content": list(content),
            "sender": sender,
            "created_at": f"2025-03-01T10:00:{second:02}.000000Z",
            "updated_at": f"2025-03-01T10:00:{second:02}.000000Z",
            "attachments": [],
            "files": [],
            "parent_message_uuid": parent,
            **more,
        }

    def text(words: str) -> dict[str, Any]:
        return {"type": "text", "text": words, "citations": []}

    calls = [{"type": "tool_use", "name": "web_search", "input": {}}, {"type": "tool_result", "content": []}]
    thought = {"type": "thinking", "thinking": "let me think", "summaries": []}
    pasted = {"file_name": "notes.txt", "file_size": 12, "file_type": "txt", "extracted_content": "pasted words"}
    files = [{"file_name": "notes.txt"}, {"file_name": "cat.png"}]
    return [
        {
            "uuid": "7a5d5c2e-0000-4000-8000-000000000001",
            "name": "Legs",
            "summary": "",
            "created_at": "2025-03-01T10:00:00.123456Z",
            "updated_at": "2025-03-01T10:05:00.000000Z",
            "account": {"uuid": "a"},
            "current_leaf_message_uuid": "m4",
            "chat_messages": [
                said("m1", root, "human", 1, text("How many legs has a cat?")),
                said("m2", "m1", "assistant", 2, thought, *calls, text("Four."), text("Sure.")),
                said("m3", "m1", "assistant", 3, text("It has four.")),
                said("m4", "m3", "human", 4, attachments=[pasted], files=files),
            ],
        }
    ]


def deepseek() -> list[dict[str, Any]]:
    def node(key: str, parent: str | None, at: str = "", *fragments: tuple[str, Any], **more: Any) -> dict[str, Any]:
        message = {
            "files": [],
            "model": "deepseek-reasoner",
            "inserted_at": at,
            "fragments": [{"type": kind, "content": content} for kind, content in fragments],
            **more,
        }
        return {"id": key, "parent": parent, "children": [], "message": message if at else None}

    nodes = [
        node("root", None),
        node("1", "root", "2025-04-29T11:59:13.202000+08:00", ("REQUEST", "Wie viele Beine?")),
        node(
            "2",
            "1",
            "2025-04-29T11:59:20.500000+08:00",
            ("SEARCH", None),
            ("THINK", "Ich zähle."),
            ("RESPONSE", "Vier."),
        ),
        node("3", "1", "2025-04-29T11:59:50.000000+08:00", ("RESPONSE", "Drei.")),
    ]
    return [
        {
            "id": "74ae7ef3",
            "title": "Beine",
            "inserted_at": "2025-04-29T11:59:11.635000+08:00",
            "updated_at": "2025-04-29T12:44:11.402000+08:00",
            "mapping": {entry["id"]: entry for entry in nodes},
        }
    ]
