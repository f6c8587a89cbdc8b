"""Makes the blocking clients from the asyncio ones: `python -m lint.blocking` writes them.

What differs in more than its calls is no part of these files: connections, coalescers and the like are written by hand.
"""

import re
import subprocess
import tokenize
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Final

__all__ = ["CLIENTS", "outdated", "write_clients"]

ROOT: Final = Path(__file__).parents[2]

CLIENTS: Final = {
    "consumer/src/lisa_consumer/delivery/async_client.py": "client.py",
    "manager/src/lisa_manager/admin/async_client.py": "client.py",
    "producer/src/lisa_producer/async_client.py": "client.py",
}
"""Each source, and the file beside it that is made from it."""

_RENAMED: Final = {"aclosing": "closing", "aiter": "iter"}


def blocking(source: str) -> str:
    """The code of a blocking client. Of text, only the first docstring and the names in `__all__` differ."""
    lines, row, column = source.splitlines(keepends=True), 1, 0
    made = ["# Made from the asyncio client by `make format`: change that one.\n"]
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    for number, token in enumerate(token for token in tokens if token.type == tokenize.STRING):
        (first, start), (last, end) = token.start, token.end
        made.append(_renamed("".join(_between(lines, row, column, first, start))))
        if number == 0:
            made.append(token.string.replace("asyncio", "blocking"))
        else:
            made.append(token.string if token.string.startswith('"""') else _renamed(token.string))
        row, column = last, end
    made.append(_renamed("".join(_between(lines, row, column, len(lines), len(lines[-1])))))
    return "".join(made)


def _between(lines: list[str], row: int, column: int, last: int, end: int) -> Iterator[str]:
    """The text from one place to another; rows count from 1."""
    for at in range(row, last + 1):
        yield lines[at - 1][column if at == row else 0 : end if at == last else None]


def _renamed(code: str) -> str:
    code = re.sub(r"\b(async|await) ", "", code)
    code = re.sub(r"\b(Async(?=[A-Z])|async_(?=[a-z]))", "", code)
    return re.sub(r"\w+", lambda word: _RENAMED.get(word[0], word[0]), code)


def _formatted(path: Path, code: str) -> str:
    for command in (["check", "--fix", "--quiet"], ["format"]):
        told = ["ruff", *command, "--stdin-filename", str(path), "-"]
        code = subprocess.run(told, input=code, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return code


def _made() -> Iterator[tuple[Path, str]]:
    for name, target in CLIENTS.items():
        path = ROOT / name
        made = path.with_name(target)
        yield made, _formatted(made, blocking(path.read_text("utf-8")))


def outdated() -> list[Path]:
    """The blocking clients that differ from what their sources make."""
    return [path.relative_to(ROOT) for path, code in _made() if path.read_text("utf-8") != code]


def write_clients() -> None:
    """Writes all blocking clients."""
    for path, code in _made():
        path.write_text(code, "utf-8")


if __name__ == "__main__":
    write_clients()
