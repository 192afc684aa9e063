"""Search: its table, and the triggers that keep it. Whatever writes a message or a title, they index it in the same
transaction; whatever deletes one, its entry goes with it. What is there already is indexed by the next migration.

Needs no extension and no superuser: accents are folded by Unicode's decomposition. The words of CJK and Thai text,
which has no spaces, are its characters; a phrase of them is found like a word. A trigger must never refuse a message:
only the first 48,000 characters count, so that no vector can grow beyond what Postgres takes.
"""

import django.contrib.postgres.search
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

MAKE = r"""
ALTER TABLE chat_searchentry
    ADD CONSTRAINT search_entry_of_conversation
        FOREIGN KEY (conversation_id) REFERENCES chat_conversation (id) ON DELETE CASCADE,
    ADD CONSTRAINT search_entry_of_message
        FOREIGN KEY (message_id) REFERENCES chat_message (id) ON DELETE CASCADE;

-- Words of a text, each as it is compared, with a space between them.
CREATE FUNCTION chat_search_fold(said text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT lower(regexp_replace(regexp_replace(regexp_replace(
        left(normalize(left(said, 48000), NFKD), 48000),
        '[\u0300-\u036f\u200d\u3099\u309a\ufe00-\ufe0f]+', '', 'g'),
        '[\u0001-/:-@[-`{-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7\u2000-\u206f\u20a0-\u20cf'
        || '\u2190-\u2bff\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\ud7fc-\ud7ff\ue000-\uf8ff\ufe10-\ufe6f'
        || '\uff00-\uff0f\ufff0-\uffff\U0001f000-\U0001faff]+', ' ', 'g'),
        '([\u0e00-\u0eff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff'
        || '\U00020000-\U0003ffff])', ' \1 ', 'g'))
$$;

-- What stands before each word: whose it is and where. Letters alone, so that the parser sees one word, never a number
-- or an address. Two owners may share one: results are theirs by the owner column.
CREATE FUNCTION chat_search_key(owner uuid, kind text, bucket integer) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT kind || translate(left(md5(owner::text), 6) || lpad(to_hex(bucket), 4, '0'), '0123456789', 'ghijklmnop')
$$;

CREATE FUNCTION chat_search_vector(key text, said text) RETURNS tsvector LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT to_tsvector('simple'::regconfig, regexp_replace(chat_search_fold(said), '(\S+)', key || '\1', 'g'))
$$;

CREATE FUNCTION chat_search_put_message() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    found_owner uuid;
    found_bucket integer;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.content = OLD.content THEN
        RETURN NULL;
    END IF;
    IF NEW.content = '' THEN
        DELETE FROM chat_searchentry WHERE message_id = NEW.id;
        RETURN NULL;
    END IF;
    SELECT owner_id INTO found_owner FROM chat_conversation WHERE id = NEW.conversation_id;
    IF found_owner IS NULL THEN
        RETURN NULL;  -- the foreign key refuses it at the commit
    END IF;
    SELECT bucket INTO found_bucket FROM chat_searchentry WHERE message_id = NEW.id;
    IF found_bucket IS NULL THEN
        -- One in a thousand begins the next bucket: no counter, so nobody waits for anybody.
        SELECT LEAST(COALESCE(max(bucket), 0) + (random() < 0.001)::integer, 65535) INTO found_bucket
        FROM chat_searchentry WHERE owner_id = found_owner;
    END IF;
    INSERT INTO chat_searchentry (owner_id, conversation_id, message_id, bucket, vector)
    VALUES (found_owner, NEW.conversation_id, NEW.id, found_bucket,
            chat_search_vector(chat_search_key(found_owner, 'm', found_bucket), NEW.content))
    ON CONFLICT (message_id) DO UPDATE SET vector = EXCLUDED.vector, bucket = EXCLUDED.bucket;
    RETURN NULL;
END
$$;

CREATE FUNCTION chat_search_put_title() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.title = OLD.title THEN
        RETURN NULL;
    END IF;
    IF NEW.title = '' THEN
        DELETE FROM chat_searchentry WHERE conversation_id = NEW.id AND message_id IS NULL;
        RETURN NULL;
    END IF;
    INSERT INTO chat_searchentry (owner_id, conversation_id, bucket, vector)
    VALUES (NEW.owner_id, NEW.id, 0, chat_search_vector(chat_search_key(NEW.owner_id, 't', 0), NEW.title))
    ON CONFLICT (conversation_id) WHERE message_id IS NULL DO UPDATE SET vector = EXCLUDED.vector;
    RETURN NULL;
END
$$;

CREATE TRIGGER chat_search_message AFTER INSERT OR UPDATE OF content ON chat_message
    FOR EACH ROW EXECUTE FUNCTION chat_search_put_message();
CREATE TRIGGER chat_search_title AFTER INSERT OR UPDATE OF title ON chat_conversation
    FOR EACH ROW EXECUTE FUNCTION chat_search_put_title();
"""

UNMAKE = """
DROP TRIGGER chat_search_title ON chat_conversation;
DROP TRIGGER chat_search_message ON chat_message;
DROP FUNCTION chat_search_put_title();
DROP FUNCTION chat_search_put_message();
DROP FUNCTION chat_search_vector(text, text);
DROP FUNCTION chat_search_key(uuid, text, integer);
DROP FUNCTION chat_search_fold(text);
"""


class Migration(migrations.Migration):
    dependencies = [
        ("chat", "0005_queue_order_and_refusals"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="SearchEntry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("bucket", models.PositiveIntegerField(default=0)),
                ("vector", django.contrib.postgres.search.SearchVectorField()),
                (
                    "owner",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "conversation",
                    models.ForeignKey(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="search_entries",
                        to="chat.conversation",
                    ),
                ),
                (
                    "message",
                    models.OneToOneField(
                        db_constraint=False,
                        help_text="None: the entry of the title.",
                        null=True,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="search_entry",
                        to="chat.message",
                    ),
                ),
            ],
            options={"verbose_name_plural": "search entries"},
        ),
        migrations.AddConstraint(
            model_name="searchentry",
            constraint=models.UniqueConstraint(
                condition=models.Q(("message", None)), fields=("conversation",), name="one_entry_per_title"
            ),
        ),
        migrations.AddIndex(
            model_name="searchentry", index=models.Index(fields=["owner", "-bucket"], name="search_bucket")
        ),
        migrations.RunSQL(MAKE, UNMAKE),
    ]
