"""The groups of people that roles are made of."""

from django.db import migrations

ROLE_NAMES = ("admin", "operator", "member", "viewer")


def make_groups(apps, schema_editor):
    group = apps.get_model("auth", "Group")
    for name in ROLE_NAMES:
        group.objects.get_or_create(name=name)


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial"), ("auth", "0012_alter_user_first_name_max_length")]
    operations = [migrations.RunPython(make_groups, migrations.RunPython.noop)]
