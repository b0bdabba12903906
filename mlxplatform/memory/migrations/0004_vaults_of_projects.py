"""Vaults belong to projects by name too, keep the folder they have, and name the keys whose answers they read."""

import django.db.models.functions.text
from django.db import migrations, models
from django.db.models import F


def keep_folders(apps, schema_editor):
    """Vaults made before lie under their bare names, whatever their project."""
    apps.get_model("memory", "Vault").objects.update(folder=F("name"))


class Migration(migrations.Migration):
    dependencies = [("memory", "0003_section_vector_model")]
    operations = [
        migrations.AddField("vault", "folder", models.CharField(default="", max_length=120), preserve_default=False),
        migrations.RunPython(keep_folders, migrations.RunPython.noop),
        migrations.AlterField(
            "vault",
            "folder",
            models.CharField(
                editable=False, help_text="Below the memory's folder; kept for good.", max_length=120, unique=True
            ),
        ),
        migrations.AlterField("vault", "name", models.SlugField(max_length=40)),
        migrations.AddField(
            "vault",
            "history_keys",
            models.JSONField(blank=True, default=list, help_text="Ids of the API keys whose answers are read."),
        ),
        migrations.AlterField(
            "vault",
            "own_history",
            models.BooleanField(default=False, help_text="Read answers of this project that were asked without a key."),
        ),
        migrations.AddConstraint(
            "vault",
            models.UniqueConstraint(
                models.F("project"), django.db.models.functions.text.Lower("name"), name="memory_vault_name_once_a_project"
            ),
        ),
    ]
