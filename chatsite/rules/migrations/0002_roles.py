"""Permissions of the staff's pages, bounds of days, and three groups to give to people: see `roles`.

The groups are made this once, so that one which an admin deletes stays deleted. The permissions of other apps may not
exist yet when this runs; they are made here as `migrate` would make them later, and it finds them then.
"""

import django.core.validators
from django.db import migrations, models

PERMISSIONS = {  # app, model, codename -> its words, as the model has them
    ("rules", "siterules", "view_fleet"): "Can see queue, workers and services at /ops/",
    ("rules", "siterules", "view_analytics"): "Can see who uses how much at /ops/analytics/",
    ("review", "accessevent", "view_transcript"): "Can open conversations of others, each time with a reason",
    ("audit", "auditentry", "view_auditentry"): "Can view audit entry",
}
ROLES = {
    "Operators": ("view_fleet", "view_analytics"),
    "Reviewers": ("view_transcript",),
    "Auditors": ("view_auditentry",),
}


def make_roles(apps, schema_editor):
    """Make those groups whose name is free: another's members would suddenly be allowed more."""
    Group = apps.get_model("auth", "Group")
    Permission = apps.get_model("auth", "Permission")
    ContentType = apps.get_model("contenttypes", "ContentType")
    made = {}
    for (app, model, codename), words in PERMISSIONS.items():
        content_type, _ = ContentType.objects.get_or_create(app_label=app, model=model)
        made[codename], _ = Permission.objects.get_or_create(
            content_type=content_type, codename=codename, defaults={"name": words}
        )
    for name, codenames in ROLES.items():
        group, is_new = Group.objects.get_or_create(name=name)
        if is_new:
            group.permissions.add(*(made[codename] for codename in codenames))


def _days(least, help_text):
    bounds = [django.core.validators.MinValueValidator(least), django.core.validators.MaxValueValidator(36500)]
    return models.PositiveIntegerField(blank=True, help_text=help_text, null=True, validators=bounds)


class Migration(migrations.Migration):

    dependencies = [
        ('rules', '0001_initial'),
        ('auth', '0012_alter_user_first_name_max_length'),
        ('contenttypes', '0002_remove_content_type_name'),
    ]

    operations = [
        migrations.AlterModelOptions(
            name='siterules',
            options={
                'default_permissions': ('view', 'change'),
                'permissions': [
                    ('view_fleet', 'Can see queue, workers and services at /ops/'),
                    ('view_analytics', 'Can see who uses how much at /ops/analytics/'),
                ],
                'verbose_name': 'site rules',
                'verbose_name_plural': 'site rules',
            },
        ),
        migrations.AlterField(
            model_name='siterules',
            name='retention_days',
            field=_days(1, 'Conversations go so long after their last message; empty: they stay.'),
        ),
        migrations.AlterField(
            model_name='siterules',
            name='key_days',
            field=_days(1, 'API keys live so long at most; empty: as long as their owner says.'),
        ),
        migrations.AlterField(
            model_name='siterules',
            name='audit_days',
            field=_days(90, 'Audit entries go so long after they were made; empty: they stay.'),
        ),
        migrations.AlterField(
            model_name='grouprules',
            name='retention_days',
            field=_days(1, "Of its members' conversations; empty: as the site says."),
        ),
        migrations.RunPython(make_roles, migrations.RunPython.noop),
    ]
