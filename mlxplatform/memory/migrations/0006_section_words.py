"""PostgreSQL: one weighted column of words per section, page title included, as SQLite's index has it."""

from django.db import migrations

FORWARDS = """
    DROP INDEX memory_section_words;
    ALTER TABLE memory_section ADD COLUMN words tsvector;
    UPDATE memory_section s SET words = setweight(to_tsvector('simple', p.title), 'A')
        || setweight(to_tsvector('simple', s.title), 'B') || to_tsvector('simple', s.text)
        FROM memory_page p WHERE p.id = s.page_id;
    CREATE INDEX memory_section_words ON memory_section USING gin (words);
"""
BACKWARDS = """
    DROP INDEX memory_section_words;
    ALTER TABLE memory_section DROP COLUMN words;
    CREATE INDEX memory_section_words ON memory_section USING gin (to_tsvector('simple', title || ' ' || text));
"""


def forwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(FORWARDS)


def backwards(apps, schema_editor):
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute(BACKWARDS)


class Migration(migrations.Migration):
    dependencies = [("memory", "0005_history_turns")]
    operations = [migrations.RunPython(forwards, backwards)]
