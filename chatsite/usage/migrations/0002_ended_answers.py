"""Enter what was answered before there was a ledger."""

from typing import Any

from django.db import migrations
from django.utils import timezone

# Rows that the ledger has begun already are left as they are.
FILL = """
INSERT INTO usage_usageday (
    user_id, day, model, source, api_key_id, num_answers, num_failed, num_stopped,
    prompt_tokens, cached_tokens, completion_tokens, charged_tokens, decode_seconds
)
SELECT user_id, (ended_at AT TIME ZONE %s)::date, model, source, api_key_id,
    count(*), count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status = 'stopped'),
    sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
    CASE WHEN source = 'title' THEN 0
        ELSE sum(greatest(prompt_tokens - cached_tokens, 0) + completion_tokens) END,
    sum(decode_seconds)
FROM chat_generation
WHERE status <> 'active'
GROUP BY 1, 2, 3, 4, 5
ON CONFLICT DO NOTHING
"""


def fill(apps: Any, schema_editor: Any) -> None:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(FILL, [timezone.get_default_timezone_name()])


class Migration(migrations.Migration):
    dependencies = [("usage", "0001_initial"), ("chat", "0008_reservations_and_keys")]
    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
