"""Search: entries of what was written before its triggers, and the index of words.

Outside a transaction, a stretch of rows at a time, so that a site goes on while it runs; broken off, it can be run
again.
"""

import django.contrib.postgres.indexes
from django.db import migrations

STRETCH = 2_000  # messages at a time

TITLES = """
INSERT INTO chat_searchentry (owner_id, conversation_id, bucket, vector)
SELECT owner_id, id, 0, chat_search_vector(chat_search_key(owner_id, 't', 0), title)
FROM chat_conversation WHERE title <> ''
ON CONFLICT DO NOTHING
"""

# Buckets of a thousand, the eldest first; newer messages, which the triggers indexed meanwhile, keep theirs.
MESSAGES = """
INSERT INTO chat_searchentry (owner_id, conversation_id, message_id, bucket, vector)
SELECT owner_id, conversation_id, id, bucket, chat_search_vector(chat_search_key(owner_id, 'm', bucket), content)
FROM (
    SELECT m.id, m.conversation_id, m.content, c.owner_id,
        LEAST((COALESCE(b.num, 0) + row_number() OVER (PARTITION BY c.owner_id ORDER BY m.id)) / 1000, 65535)::integer
        AS bucket
    FROM (SELECT * FROM chat_message WHERE id > %(after)s AND content <> '' ORDER BY id LIMIT %(stretch)s) m
    JOIN chat_conversation c ON c.id = m.conversation_id
    LEFT JOIN (SELECT owner_id, count(*)::integer AS num FROM chat_searchentry WHERE message_id IS NOT NULL
               GROUP BY owner_id) b ON b.owner_id = c.owner_id
) AS there
ON CONFLICT DO NOTHING
"""

LAST = """
SELECT max(id::text)::uuid FROM
    (SELECT id FROM chat_message WHERE id > %(after)s AND content <> '' ORDER BY id LIMIT %(stretch)s) m
"""


def fill(apps, schema_editor):
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(TITLES)
        place = {"after": "00000000-0000-0000-0000-000000000000", "stretch": STRETCH}
        while True:
            cursor.execute(LAST, place)
            (last,) = cursor.fetchone()
            if last is None:
                return
            cursor.execute(MESSAGES, place)
            place["after"] = last


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("chat", "0006_search_entries")]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL("DROP INDEX IF EXISTS search_words", migrations.RunSQL.noop),
                migrations.RunSQL(
                    "CREATE INDEX CONCURRENTLY search_words ON chat_searchentry USING gin (vector) "
                    "WITH (fastupdate = on, gin_pending_list_limit = 512)",
                    "DROP INDEX IF EXISTS search_words",
                ),
                migrations.RunSQL("ANALYZE chat_searchentry", migrations.RunSQL.noop),
            ],
            state_operations=[
                migrations.AddIndex(
                    model_name="searchentry",
                    index=django.contrib.postgres.indexes.GinIndex(
                        fields=["vector"], fastupdate=True, gin_pending_list_limit=512, name="search_words"
                    ),
                )
            ],
        ),
    ]
