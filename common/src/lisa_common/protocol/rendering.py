"""From the source of a Lua script to the text that a server gets.

A source is a header, the names of includes, and code:

    -- KEYS[1] messages   hash    message id -> record
    -- ARGV[1] now_ms     text    ms, empty for the server's clock
    -- ARGV[2...] id, due per message
    --@include clock, record

The header becomes locals, one for each key and argument that the script uses. An argument is text, a number, JSON, or a
flag, which is true for "1". What repeats comes row by row, or where the header says "by column", column by column.

An include consists of local definitions, and names the includes that it uses itself. It may use keys, which have the
same names in all scripts, but no arguments. A script gets each include once, after those that the include uses, and
only the definitions that it needs: the server makes each function anew in every call. For the same reason constants of
includes are replaced by their values: a function that names a local takes longer to make.

An indented `--@include` line stands in a branch: its definitions are made only when the branch runs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Header", "read_header", "render"]

Read = Callable[[str], str]
"""Returns the source at a path, which is given without its suffix."""

_KEY = re.compile(r"^-- KEYS\[\d+\] (\w+)", re.MULTILINE)
_ARG = re.compile(r"^-- ARGV\[\d+\] (\w+) +(\w+)", re.MULTILINE)
_ROW = re.compile(r"^-- ARGV\[\d+\.\.\.\] (\w+(?:, \w+)*) per ", re.MULTILINE)
_INCLUDE = re.compile(r"^( *)--@include (\w+(?:, \w+)*)\n", re.MULTILINE)
_COMMENT_OR_BLANK = re.compile(r"^ *(?:--(?!@).*)?\n", re.MULTILINE)
_DEFINITION = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)
_CONSTANT = re.compile(r"local [A-Z_]+ = ([\d .*/^+-]+|'[^'\n]*')\n")
_STRING = re.compile(r"'[^'\n]*'")
_NAME = re.compile(r"(?<![.\w])[A-Za-z_]\w*")
_STRING_OR_NAME = re.compile(f"{_STRING.pattern}|{_NAME.pattern}")
_VALUES = {"text": "{}", "number": "tonumber({})", "json": "cjson.decode({})", "flag": "{} == '1'"}


@dataclass(frozen=True, slots=True)
class Header:
    """What a script declares. `row` names the values that repeat for each item of a batch."""

    keys: tuple[str, ...]
    args: tuple[str, ...]
    kinds: tuple[str, ...]
    row: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """A definition of an include; or code of the script, which defines nothing for others."""

    text: str
    named: frozenset[str]
    defined: frozenset[str] = frozenset()


def read_header(source: str) -> Header:
    """What the header of a script declares."""
    args, row = _ARG.findall(source), _ROW.search(source)
    return Header(
        keys=tuple(_KEY.findall(source)),
        args=tuple(name for name, _ in args),
        kinds=tuple(kind for _, kind in args),
        row=tuple(row[1].split(", ")) if row else (),
    )


def render(name: str, read: Read) -> str:
    """The text of a script. Raises ValueError if its includes form a cycle, or hold more than local definitions."""
    source = read(name)
    header = read_header(source)
    parts = list(_parts(source, read))
    code = [part for part in parts if not part.defined]
    needed = _needed(parts)
    keys = {key: f"KEYS[{number}]" for number, key in enumerate(header.keys, 1)}
    args = {
        arg: _VALUES[kind].format(f"ARGV[{number}]")
        for number, (arg, kind) in enumerate(zip(header.args, header.kinds, strict=True), 1)
    }
    texts = _without_constants(needed)
    texts.insert(needed.index(code[0]), _locals(args, _named(code)))
    return "".join((f"-- Lisa: {name}\n", _locals(keys, _named(needed)), *texts))


def _locals(values: dict[str, str], named: set[str]) -> str:
    used = {name: value for name, value in values.items() if name in named}
    return f"local {', '.join(used)} = {', '.join(used.values())}\n" if used else ""


def _parts(source: str, read: Read) -> Iterator[_Part]:
    first, *parts = _INCLUDE.split(_compact(source))
    if first:
        yield _part(first)
    outer: list[str] = []
    for indent, names, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        includes = [include for include in _in_order(names.split(", "), read) if include not in outer]
        for include in includes:
            yield from _definitions(include, read)
        if not indent:
            outer += includes
        yield _part(code)


def _in_order(names: Iterable[str], read: Read, users: tuple[str, ...] = ()) -> list[str]:
    """Includes and those that they use, each once, after those that it uses itself."""
    ordered: list[str] = []
    for name in names:
        if name in users:
            raise ValueError(f"includes form a cycle: {' -> '.join((*users[users.index(name) :], name))}")
        used = [used for match in _INCLUDE.finditer(read(f"include/{name}")) for used in match[2].split(", ")]
        ordered += [*_in_order(used, read, (*users, name)), name]
    return list(dict.fromkeys(ordered))


def _definitions(include: str, read: Read) -> Iterator[_Part]:
    text = _INCLUDE.sub("", _compact(read(f"include/{include}")))
    starts = list(_DEFINITION.finditer(text))
    if not starts or starts[0].start() > 0:
        raise ValueError(
            f"an include must hold only local definitions; {include} begins with {text.split(chr(10))[0]!r}"
        )
    ends = [*(start.start() for start in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=True):
        yield _part(text[start.start() : end], start[1].split(", "))


def _needed(parts: Sequence[_Part]) -> list[_Part]:
    """Code, and the definitions that it names, itself or in another definition that it needs."""
    needed: list[_Part] = []
    named: set[str] = set()
    for part in reversed(parts):
        # A definition serves what comes after it, up to the next one of the same name, in another branch.
        if not part.defined or part.defined & named:
            needed.append(part)
            named = (named | part.named) - part.defined
    return needed[::-1]


def _without_constants(parts: Sequence[_Part]) -> list[str]:
    """The texts of parts, with the values of constants in their place. A constant's own text is empty."""
    values: dict[str, str] = {}
    texts = []
    for part in parts:
        if part.defined and (constant := _CONSTANT.fullmatch(part.text)):
            [name] = part.defined
            values[name] = constant[1] if constant[1].isdigit() or constant[1][0] == "'" else f"({constant[1]})"
            texts.append("")
        else:
            texts.append(_replaced(part.text, values) if values else part.text)
    return texts


def _replaced(text: str, values: Mapping[str, str]) -> str:
    """A text with values in place of names outside of its strings."""
    return _STRING_OR_NAME.sub(lambda found: values.get(found[0], found[0]), text)


def _part(text: str, defined: Iterable[str] = ()) -> _Part:
    return _Part(text, frozenset(_NAME.findall(_STRING.sub("", text))), frozenset(defined))


def _named(parts: Iterable[_Part]) -> set[str]:
    return {name for part in parts for name in part.named}


def _compact(source: str) -> str:
    return _COMMENT_OR_BLANK.sub("", source)
