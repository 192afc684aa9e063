from django.db import migrations, models
from django.db.models.functions import Upper

ACTIONS = [
    ("account.signed_in", "signed in"),
    ("account.sign_in_failed", "failed to sign in"),
    ("account.signed_out", "signed out"),
    ("account.created", "account created"),
    ("account.changed", "account changed"),
    ("account.deleted", "account deleted"),
    ("account.password", "password changed"),
    ("account.email", "e-mail address changed"),
    ("account.connected", "outside sign-in connected"),
    ("account.disconnected", "outside sign-in disconnected"),
    ("factor.added", "second factor added"),
    ("factor.removed", "second factor removed"),
    ("factor.reset", "recovery codes made anew"),
    ("session.ended", "session ended"),
    ("key.created", "API key made"),
    ("key.changed", "API key changed"),
    ("key.revoked", "API key revoked"),
    ("group.changed", "group changed"),
    ("rules.changed", "rules changed"),
    ("data.exported", "data exported"),
    ("link.created", "conversation shared by link"),
    ("link.changed", "shared link changed"),
    ("link.revoked", "shared link revoked"),
    ("review.opened", "conversation opened for review"),
    ("retention.deleted", "conversations deleted by age"),
    ("admin.changed", "records changed in the admin"),
]

# An entry is final. The one change is an erasure: whoever empties a person's column and puts a pseudonym in place of
# their name gets the whole of it, since the trigger itself takes along what else tells of them. It cannot be undone,
# and nothing else can be changed with it. Entries of 90 days may be deleted one by one, never a table at once.
FINAL = r"""
CREATE FUNCTION audit_without_name(part jsonb, name text, pseudonym text) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF jsonb_typeof(part) = 'string' THEN
        RETURN to_jsonb(regexp_replace(
            part #>> '{}', '(?<!\w)' || regexp_replace(name, '(\W)', '\\\1', 'g') || '(?!\w)', pseudonym, 'gi'));
    ELSIF jsonb_typeof(part) = 'object' THEN
        RETURN (SELECT coalesce(jsonb_object_agg(key, audit_without_name(value, name, pseudonym)), '{}')
                FROM jsonb_each(part));
    ELSIF jsonb_typeof(part) = 'array' THEN
        RETURN (SELECT coalesce(jsonb_agg(audit_without_name(value, name, pseudonym) ORDER BY place), '[]')
                FROM jsonb_array_elements(part) WITH ORDINALITY AS each(value, place));
    END IF;
    RETURN part;
END $$;

CREATE FUNCTION audit_may_stand_for(pseudonym text, name text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT name <> '' AND name !~ '^deleted user [0-9a-f]{8}$' AND pseudonym ~ '^deleted user [0-9a-f]{8}$'
$$;

CREATE FUNCTION audit_entry_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    erased audit_auditentry;
    wanted audit_auditentry;
BEGIN
    IF TG_OP = 'DELETE' AND OLD.at < statement_timestamp() - interval '90 days' THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        erased := OLD;
        wanted := OLD;  -- what the statement may say of it
        IF audit_may_stand_for(NEW.actor_name, OLD.actor_name) THEN
            wanted.actor_id := NULL;
            wanted.actor_name := NEW.actor_name;
            erased.ip := NULL;
            IF OLD.subject_name = '' THEN  -- else it is the subject's
                erased.detail := erased.detail - 'personal';
            END IF;
            erased.detail := audit_without_name(erased.detail, OLD.actor_name, NEW.actor_name);
        END IF;
        IF audit_may_stand_for(NEW.subject_name, OLD.subject_name) THEN
            wanted.subject_id := NULL;
            wanted.subject_name := NEW.subject_name;
            IF OLD.actor_name = '' THEN  -- nobody was known: it may have been the person
                erased.ip := NULL;
            END IF;
            erased.detail := audit_without_name(erased.detail - 'personal', OLD.subject_name, NEW.subject_name);
        END IF;
        IF NEW IS NOT DISTINCT FROM wanted THEN
            NEW.ip := erased.ip;
            NEW.detail := erased.detail;
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'an audit entry is never changed, and not deleted before 90 days are over'
        USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER audit_entry_is_final BEFORE UPDATE OR DELETE ON audit_auditentry
    FOR EACH ROW EXECUTE FUNCTION audit_entry_is_final();
CREATE TRIGGER audit_log_is_never_emptied BEFORE TRUNCATE ON audit_auditentry
    FOR EACH STATEMENT EXECUTE FUNCTION audit_entry_is_final();
"""
NOT_FINAL = """
DROP TRIGGER audit_log_is_never_emptied ON audit_auditentry;
DROP TRIGGER audit_entry_is_final ON audit_auditentry;
DROP FUNCTION audit_entry_is_final();
DROP FUNCTION audit_may_stand_for(text, text);
DROP FUNCTION audit_without_name(jsonb, text, text);
"""


class Migration(migrations.Migration):

    dependencies = [("audit", "0001_initial")]

    operations = [
        migrations.AlterField(
            model_name="auditentry",
            name="action",
            field=models.CharField(choices=ACTIONS, max_length=40),
        ),
        migrations.AddIndex(
            model_name="auditentry", index=models.Index(Upper("actor_name"), name="audit_actor_name")
        ),
        migrations.AddIndex(
            model_name="auditentry", index=models.Index(Upper("subject_name"), name="audit_subject_name")
        ),
        migrations.RunSQL(FINAL, NOT_FINAL),
    ]
