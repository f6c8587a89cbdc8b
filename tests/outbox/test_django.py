"""The outbox in a program on Django."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from lisa_producer import Producer
from lisa_producer.outbox import Relay
from lisa_producer.outbox.table import METADATA

SITE = """
import os, sys, threading
import django
from django.conf import settings

kind, name, port, user = sys.argv[1:]
database = {"ENGINE": f"django.db.backends.{kind}", "NAME": name, "PORT": port, "USER": user, "HOST": "127.0.0.1"}
if kind == "sqlite3":
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": name}
settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["lisa_producer.outbox.django"], USE_TZ=True)
if kind == "mysql":
    import pymysql
    pymysql.version_info = (2, 2, 7, "final", 0)
    pymysql.install_as_MySQLdb()
django.setup()

from django.core.management import call_command
from django.db import connection, transaction
from lisa_producer.outbox import Outbox

call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, verbosity=0)
committed = threading.Event()
outbox = Outbox(hint=committed.set)
with transaction.atomic():
    outbox.send(connection, "orders", {"order": "100 %s"}, id="order-7", delay=900, headers={"a": "%(b)s"})
    outbox.send(connection, "orders", "gone", id="order-8", delay=900)
    assert not committed.is_set()
assert committed.is_set()
try:
    with transaction.atomic():
        outbox.send(connection, "orders", 1, id="order-9", delay=900)
        raise ZeroDivisionError
except ZeroDivisionError:
    pass
with transaction.atomic():
    outbox.cancel(connection, "orders", "order-8")
"""


@pytest.mark.slow
def test_a_program_on_django(engine: Engine, producer: Producer, relays: Callable[..., Relay], tmp_path: Path) -> None:
    """Migrates, and writes with Django's transactions."""
    METADATA.drop_all(engine)
    kind = {"postgresql": "postgresql", "mysql": "mysql", "sqlite": "sqlite3"}[engine.dialect.name]
    (tmp_path / "site_.py").write_text(SITE, "utf-8")
    url = engine.url
    command = [sys.executable, "site_.py", kind, str(url.database), str(url.port or ""), url.username or ""]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert relays(engine).relay_once() == 3
    found = producer.find("orders", "order-7")
    assert found
    assert found.record
    assert found.record.body == b'{"order":"100 %s"}'
    assert found.record.headers == {"a": "%(b)s"}
    assert [producer.find("orders", id) for id in ("order-8", "order-9")] == [None, None]
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE django_migrations")
