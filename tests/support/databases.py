"""PostgreSQL and MariaDB of Debian, as processes in temporary directories."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from support.ports import reserved_port
from support.waiting import wait_until

__all__ = ["Database", "NotInstalled", "mariadb", "postgresql"]


class NotInstalled(Exception):
    """A database is not on this machine."""


class Database:
    """A database server; it refuses to run as root, so root runs it as the user that Debian made for it."""

    def __init__(self, user: str, url: str, directory: Path, port: int) -> None:
        self.url = url
        self._user = user if os.geteuid() == 0 else None
        self._directory = directory
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._command: Sequence[str] = ()
        if self._user:
            shutil.chown(directory, self._user)

    def make(self, *command: str) -> None:
        """Runs a command that prepares the data."""
        done = subprocess.run(command, user=self._user, cwd=self._directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, *command: str) -> None:
        """Starts the server, by the command of the last start if none is given, and waits until it answers."""
        self._command = command or self._command
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, user=self._user, cwd=self._directory, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._answers, 60, what=f"a database at port {self._port}")

    def kill(self) -> None:
        """Ends it as a crash does, with all of its processes."""
        if self._process:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError((self._directory / "log").read_text("utf-8", "replace")[-2000:])
        engine = create_engine(self.url)
        try:
            with engine.connect():
                return True
        except SQLAlchemyError:
            return False
        finally:
            engine.dispose()


@contextmanager
def _database(user: str, scheme: str) -> Iterator[tuple[Database, Path, int]]:
    # Not below pytest's directories, which only root may enter.
    directory = Path(tempfile.mkdtemp(prefix="lisa-database-"))
    with reserved_port() as port:
        database = Database(user, scheme.format(port=port), directory, port)
        try:
            yield database, directory, port
        finally:
            database.kill()
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def postgresql() -> Iterator[Database]:
    """A PostgreSQL of one's own. Raises NotInstalled."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=None)
    if programs is None:
        raise NotInstalled("PostgreSQL is not installed below /usr/lib/postgresql: apt-get install postgresql")
    with _database("postgres", "postgresql+psycopg://postgres@127.0.0.1:{port}/postgres") as (database, home, port):
        data = str(home / "data")
        database.make(
            str(programs / "initdb"), "-D", data, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C"
        )
        sockets = str(home)
        database.start(
            str(programs / "postgres"), "-D", data, "-p", str(port), "-k", sockets, "-c", "max_connections=200"
        )
        yield database


@contextmanager
def mariadb() -> Iterator[Database]:
    """A MariaDB of one's own. Raises NotInstalled."""
    if not shutil.which("mariadb-install-db"):
        raise NotInstalled("MariaDB is not installed: apt-get install mariadb-server")
    with _database("mysql", "mysql+pymysql://lisa@127.0.0.1:{port}/test?charset=utf8mb4") as (database, home, port):
        data, user = str(home / "data"), "mysql" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        options = ["--no-defaults", f"--datadir={data}"]
        database.make("mariadb-install-db", *options, "--auth-root-authentication-method=normal", f"--user={user}")
        first = home / "first.sql"
        first.write_text("CREATE DATABASE IF NOT EXISTS test;CREATE USER IF NOT EXISTS lisa;GRANT ALL ON *.* TO lisa;")
        first.chmod(0o644)
        server = shutil.which("mariadbd") or "/usr/sbin/mariadbd"
        database.start(
            *(server, *options, f"--port={port}", "--bind-address=127.0.0.1", f"--socket={home / 'socket'}"),
            *(f"--pid-file={home / 'pid'}", f"--init-file={first}"),
        )
        yield database
