import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('chat', '0004_draft_files'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='queuedmessage',
            options={'ordering': ('-is_next', 'id')},
        ),
        migrations.AddField(
            model_name='attachment',
            name='queued',
            field=models.ForeignKey(blank=True, help_text='The waiting message that will take it along.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='attachments', to='chat.queuedmessage'),
        ),
        migrations.AddField(
            model_name='queuedmessage',
            name='is_next',
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name='queuedmessage',
            name='refusal',
            field=models.TextField(blank=True, db_default='', default='', help_text='Why it could not be sent.'),
        ),
        migrations.AddField(
            model_name='queuedmessage',
            name='try_again_at',
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
