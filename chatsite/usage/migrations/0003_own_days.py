"""The days of people's own quotas: what they used until now, by the days of the ledger. The day that has begun ends with
it, whatever zone they are in."""

from typing import Any

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models
from django.utils import timezone

FILL = """
INSERT INTO usage_ownday (user_id, day, begun_at, ends_at, charged_tokens)
SELECT user_id, day, day::timestamp AT TIME ZONE %(zone)s, (day + 1)::timestamp AT TIME ZONE %(zone)s, sum(charged_tokens)
FROM usage_usageday GROUP BY user_id, day HAVING sum(charged_tokens) > 0
ON CONFLICT DO NOTHING
"""


def fill(apps: Any, schema_editor: Any) -> None:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(FILL, {"zone": timezone.get_default_timezone_name()})


class Migration(migrations.Migration):

    dependencies = [
        ('usage', '0002_ended_answers'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='OwnDay',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('day', models.DateField()),
                ('begun_at', models.DateTimeField()),
                ('ends_at', models.DateTimeField()),
                ('charged_tokens', models.PositiveBigIntegerField(default=0)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='own_days', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ('-day',),
                'default_permissions': (),
                'constraints': [models.UniqueConstraint(fields=('user', 'day'), name='one_row_of_own_day')],
            },
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
