"""When somebody's account goes, access records stop saying who it was, in the one change that empties the link to them.

A pseudonym takes the place of the name of whoever opened a conversation, and their address goes; the reason no longer
has the name or the address of e-mail of either. Nothing else about an access record can change, as before.
"""

from django.db import migrations

BEFORE = """
CREATE OR REPLACE FUNCTION review_access_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
       AND (NEW.actor_id IS NULL OR NEW.actor_id = OLD.actor_id)
       AND (NEW.subject_id IS NULL OR NEW.subject_id = OLD.subject_id)
       AND (NEW.conversation_id IS NULL OR NEW.conversation_id = OLD.conversation_id)
       AND (NEW.id, NEW.actor_name, NEW.conversation_key, NEW.reason, NEW.at) =
           (OLD.id, OLD.actor_name, OLD.conversation_key, OLD.reason, OLD.at)
       AND NEW.ip IS NOT DISTINCT FROM OLD.ip
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'an access record is never changed or deleted' USING ERRCODE = 'check_violation';
END $$;
"""
AFTER = r"""
-- `said` without the names of that account, which is still there when a link to it is emptied.
CREATE FUNCTION review_without_names(said text, account uuid) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT unnest(ARRAY[email, username]) FROM accounts_user WHERE id = account
    LOOP
        IF name <> '' THEN
            said := regexp_replace(
                said, '(?<!\w)' || regexp_replace(name, '(\W)', '\\\1', 'g') || '(?!\w)', 'deleted user', 'gi');
        END IF;
    END LOOP;
    RETURN left(said, 500);
END $$;

CREATE OR REPLACE FUNCTION review_access_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    leaves boolean;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        leaves := OLD.actor_id IS NOT NULL AND NEW.actor_id IS NULL
            AND NEW.actor_name LIKE 'deleted user %' AND NEW.ip IS NULL;
        IF (NEW.actor_id IS NULL OR NEW.actor_id = OLD.actor_id)
           AND (NEW.subject_id IS NULL OR NEW.subject_id = OLD.subject_id)
           AND (NEW.conversation_id IS NULL OR NEW.conversation_id = OLD.conversation_id)
           AND (NEW.id, NEW.conversation_key, NEW.reason, NEW.at) =
               (OLD.id, OLD.conversation_key, OLD.reason, OLD.at)
           AND (leaves OR (NEW.actor_name = OLD.actor_name AND NEW.ip IS NOT DISTINCT FROM OLD.ip))
        THEN
            IF NEW.actor_id IS DISTINCT FROM OLD.actor_id THEN
                NEW.reason := review_without_names(NEW.reason, OLD.actor_id);
            END IF;
            IF NEW.subject_id IS DISTINCT FROM OLD.subject_id THEN
                NEW.reason := review_without_names(NEW.reason, OLD.subject_id);
            END IF;
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'an access record is never changed or deleted' USING ERRCODE = 'check_violation';
END $$;
"""
UNDO = BEFORE + "DROP FUNCTION review_without_names(text, uuid);"


class Migration(migrations.Migration):
    dependencies = [("review", "0001_initial"), ("accounts", "0001_initial")]

    operations = [migrations.RunSQL(AFTER, UNDO)]
