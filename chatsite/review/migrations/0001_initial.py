import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import chatsite.accounts.models

# An access record is final. Only the links to what was deleted since are emptied (ON DELETE, by Django).
FINAL = """
CREATE FUNCTION review_access_is_final() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER review_access_is_final BEFORE UPDATE OR DELETE ON review_accessevent
    FOR EACH ROW EXECUTE FUNCTION review_access_is_final();
"""
NOT_FINAL = """
DROP TRIGGER review_access_is_final ON review_accessevent;
DROP FUNCTION review_access_is_final();
"""


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ("chat", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="AccessEvent",
            fields=[
                ("id", models.UUIDField(default=chatsite.accounts.models.new_id, editable=False, primary_key=True, serialize=False)),
                ("actor_name", models.CharField(max_length=150)),
                ("conversation_key", models.CharField(db_index=True, max_length=36, verbose_name="conversation id")),
                ("reason", models.CharField(max_length=500)),
                ("ip", models.GenericIPAddressField(null=True)),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("actor", models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="transcripts_opened", to=settings.AUTH_USER_MODEL)),
                ("conversation", models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="access_events", to="chat.conversation")),
                ("subject", models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="transcripts_seen_by_others", to=settings.AUTH_USER_MODEL)),
            ],
            options={
                "ordering": ("-id",),
                "permissions": [("view_transcript", "Can open conversations of others, each time with a reason")],
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["subject", "-at"], name="review_acce_subject_9208d8_idx")],
            },
        ),
        migrations.RunSQL(FINAL, NOT_FINAL),
    ]
