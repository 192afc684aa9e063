"""Conversations worth a picture, put into a running site's database: `manage.py shell -c` runs `fill` there."""

from __future__ import annotations

import datetime
import json

from django.db import transaction
from django.utils import timezone

from chatsite.accounts.models import User
from chatsite.chat.generation import quota
from chatsite.chat.models import Conversation, Generation, Message, Tag
from chatsite.chat.text import sha256_of
from chatsite.rules.models import UserRules

CODE = """A hash map keeps its entries in an array and finds an entry's place by a **hash** of its key:

```python
class HashMap:
    def __init__(self, num_buckets: int = 64) -> None:
        self._buckets: list[list[tuple[str, int]]] = [[] for _ in range(num_buckets)]

    def put(self, key: str, value: int) -> None:
        bucket = self._bucket_of(key)
        for index, (known, _) in enumerate(bucket):
            if known == key:
                bucket[index] = (key, value)
                return
        bucket.append((key, value))

    def _bucket_of(self, key: str) -> list[tuple[str, int]]:
        return self._buckets[hash(key) % len(self._buckets)]
```

1. `hash(key)` makes a number of the key.
2. The remainder picks a bucket; keys that share one are told apart by comparing.
3. With few keys per bucket, `put` takes the same time however many entries there are.
"""
TABLE = """Both are old, both keep people awake, and nobody agrees which is better:

| | Tea | Coffee |
|:--|:--|:--|
| Caffeine a cup | 30–50 mg | 80–120 mg |
| Brewing | 2–5 min below 100 °C | 25 s to 5 min |
| Keeps | two years, dry and dark | a month once roasted |
| Goes with | milk, lemon, patience | milk, sugar, hurry |

- [x] Buy both
- [ ] Decide on one
"""
MATH = r"""The normal distribution with mean $\mu$ and deviation $\sigma$ has the density

$$
f(x) = \frac{1}{\sigma\sqrt{2\pi}}\, e^{-\frac{(x-\mu)^2}{2\sigma^2}}
$$

and its integral over all of $\mathbb{R}$ is 1, because

$$
\int_{-\infty}^{\infty} e^{-t^2}\,dt = \sqrt{\pi}.
$$

A ticket of \$5 or \$10 stays money.
"""
THOUGHT = """The user wants to know how many *r*s are in "strawberry".

Letters: s, t, r, a, w, b, e, r, r, y. The *r*s are at places 3, 8 and 9, so there are three."""
THOUGHTFUL = 'There are **three** *r*s in "strawberry": one after the *t*, and two before the *y*.'

CALLED = {
    "id": "call_1",
    "name": "python",
    "arguments": json.dumps({"code": "principal, rate = 4_000, 0.031\nround(principal * (1 + rate) ** 12, 2)"}),
    "result": "5769.71",
    "seconds": 0.02,
}
RECKONED = "After twelve years at 3.1 % the 4,000 € have become **5,769.71 €**."

PICTURES = {
    "code": ("Explain how a hash map works, with a small example", CODE, ""),
    "table": ("Compare tea and coffee in a table", TABLE, ""),
    "math": ("What is the density of the normal distribution?", MATH, ""),
    "tools": ("What do 4,000 € become in twelve years at 3.1 %?", RECKONED, ""),
    "thinking": ("How many rs are in strawberry?", THOUGHTFUL, THOUGHT),
    "error": ("Write the history of rope in forty volumes", "Volume I. The first rope was a vine", ""),
}
OTHERS = [
    "Moving a meeting to Friday",
    "Names for a grey cat",
    "Regular expressions that read well",
    "Packing for Oslo",
]


def fill(username: str) -> dict[str, str]:
    """Conversation ids by the picture's name."""
    user = User.objects.get(username=username)
    work = Tag.objects.create(owner=user, name="work")
    for days, title in enumerate(OTHERS, start=1):
        conversation = _conversation(user, title, title, "Gladly.", days_ago=days * days)
        if days in (1, 3):
            conversation.tags.add(work)
    made = {
        name: str(_conversation(user, question[:60], question, answer, thought, fails=name == "error").pk)
        for name, (question, answer, thought) in PICTURES.items()
    }
    _call_before(Conversation.objects.get(pk=made["tools"]))
    UserRules.objects.create(user=user, tokens_per_day=2_000, tokens_per_month=20_000)
    Conversation.objects.filter(pk=made["math"]).update(pinned_at=timezone.now())
    Conversation.objects.filter(pk=made["table"]).update(is_unread=True)
    return made


def _call_before(conversation: Conversation) -> None:
    """Put an answer that called a tool between the question and its answer."""
    asked, answered = conversation.messages.order_by("pk")
    called = Message.objects.create(
        conversation=conversation, parent=asked, role=Message.Role.ASSISTANT, calls=[CALLED]
    )
    Generation.objects.create(
        user=conversation.owner,
        message=called,
        model="smollm2-135m",
        worker="gpu-1",
        status=Generation.Status.DONE,
        finish_reason="tool_calls",
        completion_tokens=31,
        decode_seconds=0.8,
        ended_at=timezone.now(),
    )
    Message.objects.filter(pk=answered.pk).update(parent=called)


def _conversation(
    user: User, title: str, question: str, answer: str, thought: str = "", *, fails: bool = False, days_ago: int = 0
) -> Conversation:
    at = timezone.now() - datetime.timedelta(days=days_ago)
    conversation = Conversation.objects.create(owner=user, title=title)
    asked = Message.objects.create(conversation=conversation, role=Message.Role.USER, content=question)
    answered = Message.objects.create(
        conversation=conversation, parent=asked, role=Message.Role.ASSISTANT, content=answer, reasoning=thought
    )
    generation = Generation.objects.create(
        user=user,
        message=answered,
        model="smollm2-135m",
        worker="gpu-1",
        status=Generation.Status.FAILED if fails else Generation.Status.DONE,
        finish_reason="error" if fails else "stop",
        error_code="worker_lost" if fails else "",
        error_message="The worker stopped three times while writing this answer." if fails else "",
        is_retryable=fails,
        prompt_tokens=38,
        completion_tokens=len(answer) // 4,
        reasoning_tokens=len(thought) // 4,
        decode_seconds=len(answer) / 4 / 41,
        content_sha256=sha256_of(answer),
        ended_at=at,
    )
    with transaction.atomic():
        quota.enter(generation)
    conversation.leaf = answered
    conversation.save(update_fields=["leaf"])
    Conversation.objects.filter(pk=conversation.pk).update(updated_at=at)  # making it set it to now
    return conversation
