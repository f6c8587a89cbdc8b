"""Creates the tables."""

from typing import Any

from django.db import migrations

from lisa_producer.outbox.table import METADATA, ddl

__all__ = ["Migration"]


def create(_: Any, schema_editor: Any) -> None:
    """Creates the tables in the database that is migrated."""
    for statement in ddl(schema_editor.connection.vendor):
        schema_editor.execute(statement)


def drop(_: Any, schema_editor: Any) -> None:
    """Drops them."""
    for table in METADATA.sorted_tables:
        schema_editor.execute(f"DROP TABLE {table.name}")


class Migration(migrations.Migration):  # type: ignore[misc] # Django publishes no types
    """The tables of the outbox."""

    initial = True
    operations = (migrations.RunPython(create, drop, atomic=False),)
