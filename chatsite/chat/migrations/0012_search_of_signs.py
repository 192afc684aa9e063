"""Search: what stands between words is looked for as it is written (`C++`, `.NET`, `a_b`, an emoji).

Beside its words an entry has forms: a word with the signs that touch it, two words with the signs between them, an
emoji, a few signs alone. Each is one lexeme, in hexadecimal behind a key of its own, so that the parser sees one word
and the beginning of a form is the beginning of its lexeme. Entries of what is there are written anew, a stretch at a
time and outside a transaction; broken off, it can be run again.
"""

from django.db import migrations

STRETCH = 2_000  # entries at a time

MAKE = r"""
-- A text as it is compared, with its signs. Characters of scripts without spaces stand alone, as in `chat_search_fold`.
CREATE FUNCTION chat_search_signed(said text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT lower(regexp_replace(regexp_replace(
        left(normalize(left(said, 48000), NFKD), 48000),
        '[\u0300-\u036f\u200d\u3099\u309a\ufe00-\ufe0f]+', '', 'g'),
        '([\u0e00-\u0eff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff'
        || '\U00020000-\U0003ffff])', ' \1 ', 'g'))
$$;

-- The forms of a text. Quotes, brackets and the marks of sentences touch words everywhere and make none.
CREATE FUNCTION chat_search_forms(said text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    -- what makes no word, as in `chat_search_fold`, and space
    no_word constant text := '\s\u0001-/:-@[-`{-\u00a9\u00ab-\u00b1\u00b4\u00b6-\u00b8\u00bb\u00bf\u00d7\u00f7'
        || '\u2000-\u206f\u20a0-\u20cf\u2190-\u2bff\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\ud7fc-\ud7ff'
        || '\ue000-\uf8ff\ufe10-\ufe6f\uff00-\uff0f\ufff0-\uffff\U0001f000-\U0001faff';
    word constant text := '([^' || no_word || ']+)';
    behind constant text := '[+#$%^&=@|~\\\u00a2-\u00a5\u00a7\u00b0\u00b1\u20a0-\u20cf]';
    before constant text := '[.+#$%&=@/_~\\\u00a2-\u00a5\u00a7\u20a0-\u20cf]';
    between constant text := '[.+#$%^&=@|/_~\\]';
    emoji constant text := '[\u2190-\u2bff\U0001f000-\U0001faff]';
    signed text;
    doubled text;
    found text[];
BEGIN
    IF said !~ ('[-.+#$%^&=@|~/_\\<>:;!*\u00a2-\u00a5\u00a7\u00b0\u00b1\u20a0-\u20cf\u2190-\u2bff'
                || '\uff00-\uff3f\U0001f000-\U0001faff]') THEN
        RETURN '{}';
    END IF;
    signed := chat_search_signed(said);
    -- Between words: one that stands between two signs is there twice, for a match takes what it matches.
    doubled := regexp_replace(signed, '(' || between || ')' || word || '(?=' || between || ')', '\1\2 \2', 'g');
    SELECT array_agg(form) INTO found FROM (
        SELECT DISTINCT form FROM (
            SELECT right(m[1], 24) || left(m[2], n) AS form
            FROM regexp_matches(signed, word || '(' || behind || '{1,3})', 'g') m, generate_series(1, length(m[2])) n
            UNION ALL
            SELECT right(m[1], n) || left(m[2], 24)
            FROM regexp_matches(signed, '(' || before || '{1,3})' || word, 'g') m, generate_series(1, length(m[1])) n
            UNION ALL
            SELECT m[1] || left(m[2], 24)
            FROM regexp_matches(' ' || signed, '[' || no_word || '](-{1,2})' || word, 'g') m
            UNION ALL
            SELECT right(m[1], 24) || m[2] || left(m[3], 24)
            FROM regexp_matches(doubled, word || '(' || between || '{1,3})' || word, 'g') m
            UNION ALL
            SELECT m[1] FROM regexp_matches(signed, '(' || emoji || ')', 'g') m
            UNION ALL
            SELECT m[1]
            FROM regexp_matches(signed, '(?:^|\s)(?![.!?]+(?:\s|$))([-.+#$%^&=@|~/_\\<>:;!?*()\u00a2-\u00a7\u00b0\u00b1\u20a0-\u20cf]{1,4})(?=\s|$)', 'g') m
        ) AS every LIMIT 16000
    ) AS few;
    RETURN coalesce(found, '{}');
END
$$;

CREATE FUNCTION chat_search_hex(form text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT encode(convert_to(form, 'UTF8'), 'hex')
$$;

-- A key begins with m or t; that of forms with s or u. Forms are left out of a vector that they would make too large.
CREATE OR REPLACE FUNCTION chat_search_vector(key text, said text) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    words tsvector := to_tsvector('simple'::regconfig,
                                  regexp_replace(chat_search_fold(said), '(\S+)', key || '\1', 'g'));
    forms text;
    num_forms integer;
BEGIN
    SELECT count(*), string_agg(translate(left(key, 1), 'mt', 'su') || substr(key, 2) || chat_search_hex(form), ' ')
    INTO num_forms, forms FROM unnest(chat_search_forms(said)) AS form;
    IF forms IS NULL OR pg_column_size(words) + length(forms) + 8 * num_forms > 900000 THEN
        RETURN words;
    END IF;
    RETURN words || strip(to_tsvector('simple'::regconfig, forms));
END
$$;
"""

UNMAKE = r"""
CREATE OR REPLACE FUNCTION chat_search_vector(key text, said text) RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT to_tsvector('simple'::regconfig, regexp_replace(chat_search_fold(said), '(\S+)', key || '\1', 'g'))
$$;
DROP FUNCTION chat_search_hex(text);
DROP FUNCTION chat_search_forms(text);
DROP FUNCTION chat_search_signed(text);
"""

LAST = """
SELECT max(id) FROM (SELECT id FROM chat_searchentry WHERE id > %(after)s ORDER BY id LIMIT %(stretch)s) e
"""

# Only what has forms; whoever writes a message meanwhile writes its entry with them.
ENTRIES = """
UPDATE chat_searchentry e SET vector = chat_search_vector(chat_search_key(e.owner_id, 'm', e.bucket), m.content)
FROM chat_message m
WHERE m.id = e.message_id AND e.id > %(after)s AND e.id <= %(last)s AND cardinality(chat_search_forms(m.content)) > 0
"""
TITLES = """
UPDATE chat_searchentry e SET vector = chat_search_vector(chat_search_key(e.owner_id, 't', 0), c.title)
FROM chat_conversation c
WHERE c.id = e.conversation_id AND e.message_id IS NULL AND e.id > %(after)s AND e.id <= %(last)s
    AND cardinality(chat_search_forms(c.title)) > 0
"""


def fill(apps, schema_editor):
    place = {"after": 0, "stretch": STRETCH}
    with schema_editor.connection.cursor() as cursor:
        while True:
            cursor.execute(LAST, place)
            (place["last"],) = cursor.fetchone()
            if place["last"] is None:
                return
            cursor.execute(ENTRIES, place)
            cursor.execute(TITLES, place)
            place["after"] = place["last"]


def make(apps, schema_editor):
    """All or none, although the migration is no transaction."""
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT to_regproc('chat_search_forms') IS NULL")
        if cursor.fetchone()[0]:
            cursor.execute(f"BEGIN; {MAKE} COMMIT")


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("chat", "0011_files_in_guessed_encodings")]

    operations = [
        migrations.RunPython(make, migrations.RunPython.noop),
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.RunSQL(migrations.RunSQL.noop, UNMAKE),
    ]
