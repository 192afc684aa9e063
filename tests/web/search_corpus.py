"""Many messages of several people, for tests of the search: words as in a language (few common, many rare), by COPY."""

from __future__ import annotations

import datetime
import random
import uuid
from dataclasses import dataclass

from django.db import connection

from chatsite.accounts.models import User, new_id

COMMON = (
    "the of and to a in is it you that he was for on are with as his they be at one have this from or had by but some "
    "what there we can out other were all your when up use word how said each she which do their time if will way about"
).split()
MESSAGES_PER_CONVERSATION = 100


@dataclass(frozen=True)
class Corpus:
    users: list[User]
    rare: list[str]  # words of which each is in a few messages


def make(num_messages: int, num_users: int, seed: int = 7) -> Corpus:
    """So many messages, half of them the first user's. `only<n>` is in every message of user n and of nobody else."""
    chance = random.Random(seed)
    letters = "abcdefghijklmnoprstuvwz"
    rare = ["".join(chance.choices(letters, k=chance.randint(5, 10))) for _ in range(max(200, num_messages // 8))]
    users = [User.objects.create_user(f"reader{n}") for n in range(num_users)]
    now = datetime.datetime.now(datetime.UTC).isoformat()
    conversations: list[tuple[object, ...]] = []
    messages: list[tuple[object, ...]] = []
    for n, user in enumerate(users):
        share = num_messages // 2 if n == 0 else num_messages // 2 // max(1, num_users - 1)
        conversation: uuid.UUID | None = None
        for number in range(share):
            if number % MESSAGES_PER_CONVERSATION == 0:
                conversation = new_id()
                title = " ".join(chance.choices(COMMON, k=3) + chance.choices(rare, k=2))
                conversations.append((conversation, user.pk, title, now, now, now[:10]))
            words = chance.choices(COMMON, k=chance.randint(8, 90)) + chance.choices(rare, k=chance.randint(4, 40))
            chance.shuffle(words)
            text = f"{' '.join(words)}. only{n}"
            messages.append((new_id(), conversation, "user" if number % 2 == 0 else "assistant", text, "", now))
    with connection.cursor() as cursor:
        columns = "id, owner_id, title, created_at, updated_at, prompt_date, is_title_own, model, system_prompt"
        with cursor.copy(f"COPY chat_conversation ({columns}) FROM STDIN") as copy:
            for row in conversations:
                copy.write_row((*row, False, "", ""))
        columns = "id, conversation_id, role, content, reasoning, created_at"
        with cursor.copy(f"COPY chat_message ({columns}) FROM STDIN") as copy:
            for row in messages:
                copy.write_row(row)
        cursor.execute("ANALYZE chat_searchentry")
    return Corpus(users, rare)
