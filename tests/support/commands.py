"""Runs command lines inside the test's process, with the server and the prefix of the test."""

import json
from dataclasses import dataclass
from typing import Any

import typer
from typer.testing import CliRunner

from lisa_manager.program import program as manager
from lisa_producer.program import program as producer

__all__ = ["Commands", "Ran"]


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its output, as JSON."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """Its output: the words of each line."""
        return [line.split() for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True)
class Commands:
    """Command lines for one server."""

    url: str
    prefix: str

    def manager(self, *words: object, stdin: str | None = None, **env: str) -> Ran:
        """Runs `lisa-manager`."""
        return self._run(manager, words, stdin, env)

    def producer(self, *words: object, stdin: str | None = None, **env: str) -> Ran:
        """Runs `lisa-producer`."""
        return self._run(producer, words, stdin, env)

    def gateway(self, *words: object, stdin: str | None = None, **env: str) -> Ran:
        """Runs `lisa-gateway`."""
        # Imported here, as few tests need it, and it brings a server of HTTP.
        from lisa_gateway.program import program as gateway  # noqa: PLC0415

        return self._run(gateway, words, stdin, env)

    def _run(self, program: typer.Typer, words: tuple[object, ...], stdin: str | None, env: dict[str, str]) -> Ran:
        environment = {"LISA_REDIS_URL": self.url, "LISA_PREFIX": self.prefix, **env}
        done = CliRunner().invoke(program, [str(word) for word in words], input=stdin, env=environment)
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ran(done.exit_code, done.stdout, done.stderr)
