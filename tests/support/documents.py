"""Runs the examples of a Markdown page, in order, as a reader would.

- A `python` or `toml` block whose first line is a comment with a file name is written to that file.
- Any other `python` block is run; all blocks of a page share their names.
- Of a `console` block, each line that begins with `$ ` is run by a shell.
- What follows (a `text` block after Python, the lines below a command) must be printed; `...` stands for anything.
- Of a `sh` block, each line that begins with `$ ` is started in the background, until the page ends; with ` & ` between
  them, several commands of a line are.
- The lines of a `log` block must appear among what the background prints, soon and in this order.
- Blocks of any other language are shown to readers only, and so are parts of a page that no test runs:
  `tests/unit/test_code_blocks.py` lists them.
"""

import contextlib
import doctest
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from support.server import Server
from support.waiting import wait_until

__all__ = ["Block", "Page", "managing", "read_blocks", "run_embedded", "run_examples", "run_page"]

_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.(?:py|toml|jsonl))\n")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code, without its indentation; `line` is the first line of its text in the page."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """Returns the name of the file that the block is."""
        named = _FILE.match(self.text) if self.language in {"python", "toml"} else None
        return named and named[1]

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Returns the commands of the block, each with what it must print."""
        return list(_commands(self.text)) if self.language in {"console", "sh"} else []

    def is_run(self, before: "Block | None") -> bool:
        """Returns whether a page runs, writes or compares the block, which comes after another one."""
        if self.language == "text":
            return before is not None and before.language == "python" and not before.file
        return bool(self.language in {"python", "log"} or self.file or self.commands)


def read_blocks(page: str) -> list[Block]:
    """Returns all blocks of a page."""
    return [
        Block(match[2], textwrap.dedent(match[3]), page.count("\n", 0, match.start()) + 2)
        for match in _BLOCK.finditer(page)
    ]


class Page:
    """One page, and the directory in which its examples run."""

    def __init__(self, path: Path, directory: Path, environment: Mapping[str, str], *, log_s: float = 60) -> None:
        self._log_s = log_s
        self._path = path
        self._directory = directory
        self._environment = dict(environment)
        self._names: dict[str, Any] = {"__name__": path.stem}
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Runs the page; raises AssertionError when it prints something else. Returns the number of examples."""
        try:
            return self._run(read_blocks(self._path.read_text("utf-8")))
        finally:
            # Engines of SQLAlchemy: the connections of a program end with it, but pages run in this one.
            for close in [each.dispose for each in self._names.values() if hasattr(each, "dispose")]:
                close()
            for process in self._background:
                process.send_signal(signal.SIGTERM)
            codes = [process.wait(30) for process in self._background]
            # A program that got SIGTERM before it handled signals has ended as well.
            assert set(codes) <= {0, -signal.SIGTERM}, f"{self._path.name}: {codes}\n{self._output()}"

    def _run(self, blocks: list[Block]) -> int:
        count = 0
        for block, following in zip(blocks, [*blocks[1:], None], strict=True):
            if block.file:
                count += 1
                self._write(block, self._directory / block.file)
            elif block.language == "python":
                count += 1
                wanted = following.text if following and following.language == "text" else ""
                self._compare(block.line, wanted, self._python(block))
            elif block.language == "console":
                for command, wanted in block.commands:
                    count += 1
                    self._compare(block.line, wanted, self._shell(command))
            elif block.language == "sh":
                for line, _ in block.commands:
                    for command in line.removesuffix("&").split(" & "):
                        count += 1
                        self._start(command)
            elif block.language == "log":
                self._await_log(block.text)
        return count

    def _write(self, block: Block, path: Path) -> None:
        if block.language == "python":
            compile(block.text, str(path), "exec")
        path.write_text(block.text, "utf-8")

    def _start(self, command: str) -> None:
        with (self._directory / "background.log").open("ab") as log:
            self._background.append(
                subprocess.Popen(  # noqa: S602 - the page is ours
                    f"exec {command}",
                    shell=True,
                    cwd=self._directory,
                    env=self._environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def _output(self) -> str:
        return (self._directory / "background.log").read_text("utf-8")

    def _await_log(self, wanted: str) -> None:
        begin = 0
        for line in wanted.splitlines():
            printed = partial(self._has_printed, line, begin)
            wait_until(printed, self._log_s, what=f"{line!r} in its place in the output")
            begin = self._output().index(line, begin) + len(line)

    def _has_printed(self, line: str, begin: int) -> bool:
        return line in self._output()[begin:]

    def _python(self, block: Block) -> str:
        printed = io.StringIO()
        # Empty lines in front, so that a traceback names the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(self._path), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, self._names)  # noqa: S102 - the page is ours
        return printed.getvalue()

    def _shell(self, command: str) -> str:
        done = subprocess.run(  # noqa: S602 - the page is ours
            command,
            shell=True,
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{self._path.name}: {command}\n{done.stdout}"
        return done.stdout

    def _compare(self, line: int, wanted: str, got: str) -> None:
        if wanted:
            flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            same = doctest.OutputChecker().check_output(wanted, got, flags)
            assert same, f"{self._path.name}, line {line}: wanted\n{wanted}\ngot\n{got}"


def _commands(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, wanted = part.partition("\n")
        yield command, wanted


def run_page(path: Path, directory: Path, server: Server) -> int:
    """Runs the examples of a page in a directory, against a server, beside a manager.

    Returns how many there were.
    """
    with managing(directory, server):
        return run_examples(path, directory, server)


def run_examples(path: Path, directory: Path, server: Server) -> int:
    """Runs the examples of a page in a directory, against a server that has a manager.

    Returns how many there were.
    """
    # The pages use the default URL; the server of the test has another.
    copy = directory / path.name
    copy.write_text(path.read_text("utf-8").replace("redis://localhost:6379", server.url), "utf-8")
    return Page(copy, directory, _settings(server)).run()


@contextlib.contextmanager
def managing(directory: Path, server: Server) -> Iterator[None]:
    """Runs a manager of a server, in a directory."""
    with subprocess.Popen(["lisa-manager", "run"], env=_settings(server), cwd=directory) as manager:
        try:
            with server.client() as client:
                wait_until(lambda: client.pubsub_numsub("lisa:wake")[0][1] == 1, 60, what="the manager listens")
            yield
        finally:
            manager.send_signal(signal.SIGTERM)
            assert manager.wait(60) == 0


def _settings(server: Server) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": programs, "LISA_REDIS_URL": server.url, "LISA_LOG_LEVEL": "warning"}


def run_embedded(path: Path, programs: Path, *, section: str = "") -> int:
    """Runs the examples of a page, or of one section, that bring their own server, with the programs of a directory.

    Returns how many there were.
    """
    # Names of sockets are short, and directories of tests are not.
    with TemporaryDirectory(prefix="lisa") as name:
        directory = Path(name)
        copy = directory / path.name
        copy.write_text(_section(path.read_text("utf-8"), section), "utf-8")
        settings = {key: value for key, value in os.environ.items() if not key.startswith("LISA_")}
        settings["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        count = Page(copy, directory, settings).run()
        wait_until(lambda: not any(directory.glob("*/valkey.sock")), 30, what="the server to end with its programs")
        return count


def _section(page: str, heading: str) -> str:
    """One section of a page, on the same lines as in the page."""
    if not heading:
        return page
    before, text = page.split(f"\n## {heading}\n")
    return "\n" * (before.count("\n") + 2) + text.split("\n## ")[0]
