"""Full-text search over sections: FTS5 on SQLite, an expression index on PostgreSQL."""

from django.db import migrations

SQLITE = "CREATE VIRTUAL TABLE memory_section_fts USING fts5(page, title, text, tokenize='unicode61 remove_diacritics 2', prefix='2 3')"
POSTGRES = "CREATE INDEX memory_section_words ON memory_section USING gin (to_tsvector('simple', title || ' ' || text))"


def forwards(apps, schema_editor):
    vendor = schema_editor.connection.vendor
    schema_editor.execute(SQLITE if vendor == "sqlite" else POSTGRES)


def backwards(apps, schema_editor):
    vendor = schema_editor.connection.vendor
    schema_editor.execute("DROP TABLE memory_section_fts" if vendor == "sqlite" else "DROP INDEX memory_section_words")


class Migration(migrations.Migration):
    dependencies = [("memory", "0001_initial")]
    operations = [migrations.RunPython(forwards, backwards)]
