"""Scripts are what their headers say: a call goes by the header, so the header must not lie."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lisa_common.model.keys import TOPIC_KEYS, ShardKeys
from lisa_common.protocol import rendering
from lisa_common.protocol.rendering import read_header, render
from lisa_common.protocol.scripts import SCRIPT_NAMES, load

LUA = Path(__file__).parents[2] / "lua"
SCRIPTS = sorted(LUA.glob("*.lua"))
INCLUDES = sorted((LUA / "include").glob("*.lua"))
KEY = re.compile(r"^-- KEYS\[(\d+)\] (\w+) +(zset|hash|stream|string)(?: +\w|$)", re.MULTILINE)
ARG = re.compile(r"^-- ARGV\[(\d+)(?:\] (\w+) +(?:text|number|json|flag) |(\.\.\.)\] (\w+))", re.MULTILINE)
INCLUDE = re.compile(r"^ *--@include (.+)$", re.MULTILINE)
DEFINITION = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)
LOCALS = re.compile(r"^local ([\w, ]+) = (.*(?:KEYS|ARGV)\[\d+\].*)$", re.MULTILINE)

every_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
every_file = pytest.mark.parametrize("path", SCRIPTS + INCLUDES, ids=lambda path: path.relative_to(LUA).as_posix())


def header(path: Path) -> str:
    """The comment lines that a script begins with."""
    lines = path.read_text("utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("-- ") and line != "--")
    return "\n".join(lines[:end])


def code(path: Path) -> str:
    """A script or include without its comments."""
    return re.sub(r"--.*", "", path.read_text("utf-8"))


def includes(path: Path) -> list[str]:
    """The includes that a script or include names."""
    return [name for names in INCLUDE.findall(path.read_text("utf-8")) for name in names.split(", ")]


def definitions(name: str) -> set[str]:
    """What an include defines."""
    named = DEFINITION.findall(code(LUA / "include" / f"{name}.lua"))
    return {name for names in named for name in names.split(", ")}


def names(text: str) -> set[str]:
    """The names in some code: neither fields nor text."""
    return set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", re.sub(r"'[^'\n]*'", "", text)))


@every_script
def test_header(path: Path) -> None:
    """Purpose, keys with their types, arguments, and what it returns, in this order, numbered without gaps."""
    text = header(path)
    lines = text.splitlines()
    assert re.match(r"-- [A-Z]", lines[0]), "a script begins with its purpose"
    kinds = [match[1] for line in lines if (match := re.match(r"-- (KEYS|ARGV|returns)\b", line))]
    assert kinds == sorted(kinds, key=("KEYS", "ARGV", "returns").index)
    assert kinds.count("returns") == 1
    keys, args = KEY.findall(text), ARG.findall(text)
    assert len(keys) == kinds.count("KEYS"), "every key has a number, a name and a type"
    assert len(args) == kinds.count("ARGV"), "every argument has a number, a name and a kind"
    assert [int(number) for number, *_ in keys] == list(range(1, len(keys) + 1))
    assert [int(number) for number, *_ in args] == list(range(1, len(args) + 1))
    assert not any(rest for _, _, rest, _ in args[:-1]), "only the last argument repeats"


@every_script
def test_keys_are_those_of_the_topic(path: Path) -> None:
    """Names of keys are those of the keyspace, each at most once, each with the type that all scripts give it."""
    named = [(name, kind) for _, name, kind in KEY.findall(header(path))]
    assert {name for name, _ in named} <= {*TOPIC_KEYS, "dropped", "loan", "pace", "topics"}
    assert len(dict(named)) == len(named)
    types = {name: kind for other in SCRIPTS for _, name, kind in KEY.findall(header(other))}
    assert dict(named).items() <= types.items()


@every_script
def test_declared_is_used(path: Path) -> None:
    """Every key and argument of the header becomes a local, because some code uses it."""
    script, text = load(path.stem), code(path)
    made = [name for names, _ in LOCALS.findall(script.text) for name in names.split(", ")]
    assert made == [*script.keys, *script.args] or "ipairs(KEYS)" in text


@every_script
def test_no_key_or_argument_is_unpacked_by_hand(path: Path) -> None:
    """Code uses keys and arguments by name; by their numbers, only the values of rows, from where the header says."""
    text, header_text = code(path), header(path)
    first = next((number for number, _, rest, _ in ARG.findall(header_text) if rest), None)
    assert not re.search(r"KEYS\[|ARGV\[[^\d\]]*\]\s*=", text)
    # A Cluster gets one more key.
    assert not re.search(r"\bKEYS\b", text.replace("ipairs(KEYS)", ""))
    assert re.findall(r"ARGV\[(\d+)\]", text) == []
    loops = set(re.findall(r"(?:for \w+ = |unpack\(ARGV, )(\d+)(?:, #ARGV\b|, last_\w+|\))", text))
    assert loops == ({first} if first else set()), "rows begin where the header says"


@every_script
def test_step_of_rows(path: Path) -> None:
    """A loop over rows advances by the number of values that the header names for one; over a column, by one."""
    row = load(path.stem).row
    if "by column" in header(path):
        row = row[:1]
    steps = re.findall(r"(?:for \w+ = |unpack\(ARGV, )\d+(?:, #ARGV(?:, (\d+))? do|, last_\w+\)|\))", code(path))
    assert {int(step or 1) for step in steps} == ({len(row)} if row else set())


@every_file
def test_every_file_says_what_it_is(path: Path) -> None:
    """Includes too begin with a comment."""
    assert re.match(r"-- [A-Z]", path.read_text("utf-8"))


@every_file
def test_commands_are_uppercase_literals(path: Path) -> None:
    """Commands can be searched for: they are uppercase, and not computed."""
    calls = re.findall(r"redis\.p?call\(\s*([^\s,)]+)", code(path))
    assert [call for call in calls if not re.fullmatch(r"'[A-Z]+'", call)] == []


@every_file
def test_only_true_globals(path: Path) -> None:
    """Functions and variables are local: a script's globals would be the server's."""
    text = code(path)
    assert not re.search(r"^function ", text, re.MULTILINE)


@pytest.fixture
def with_constants(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Renders a script in which constants keep their names."""
    monkeypatch.setattr(rendering, "_CONSTANT", re.compile(r"(?!)"))
    return lambda name: render(name, lambda path: (LUA / f"{path}.lua").read_text("utf-8"))


def test_includes_exist_and_are_used(with_constants: Callable[[str], str]) -> None:
    """Every include that is named exists, and each of its definitions is in some script."""
    assert {name for path in SCRIPTS + INCLUDES for name in includes(path)} == {path.stem for path in INCLUDES}
    rendered = set().union(*(names(with_constants(name)) for name in SCRIPT_NAMES))
    assert {
        path.stem: definitions(path.stem) - rendered for path in INCLUDES if definitions(path.stem) - rendered
    } == {}


@every_file
def test_a_file_names_the_includes_that_it_uses(path: Path) -> None:
    """These and no others, in the order of the alphabet."""
    own = {
        name for names in re.findall(r"\blocal (?:function )?(\w+(?:, \w+)*)", code(path)) for name in names.split(", ")
    }
    used = names(code(path)) - own
    assert set(includes(path)) == {include.stem for include in INCLUDES if definitions(include.stem) & used} - {
        path.stem
    }
    assert all(line.split(", ") == sorted(line.split(", ")) for line in INCLUDE.findall(path.read_text("utf-8")))


@pytest.mark.parametrize("path", INCLUDES, ids=lambda path: path.stem)
def test_an_include_says_which_keys_it_needs(path: Path) -> None:
    """For its definitions, and for those of other includes that these use."""
    told = re.search(r"^-- Needs the keys?: (.+)\.$", path.read_text("utf-8"), re.MULTILINE)
    probe = "".join(f"-- KEYS[{number}] {key} x\n" for number, key in enumerate(TOPIC_KEYS, 1))
    probe += f"--@include {path.stem}\nreturn {', '.join(sorted(definitions(path.stem)))}\n"
    text = render("probe", lambda name: probe if name == "probe" else (LUA / f"{name}.lua").read_text("utf-8"))
    needed = [name for names, _ in LOCALS.findall(text) for name in names.split(", ")]
    assert sorted(told[1].split(", ") if told else []) == sorted(needed)


def test_no_include_is_left_unresolved() -> None:
    """What is loaded has its includes in it, and another text has another hash."""
    loaded = [load(name) for name in SCRIPT_NAMES]
    assert [script.name for script in loaded if "@include" in script.text] == []
    assert len({script.sha for script in loaded}) == len(loaded)


def test_definitions_that_are_not_needed_are_left_out(with_constants: Callable[[str], str]) -> None:
    """A script takes of its includes what it uses, itself or by another definition that it uses, and no more."""
    assert "function read_limits" in load("send").text
    assert "function read_record" not in load("send").text
    assert "BESIDE" not in with_constants("extend")


SOURCES = {
    "script": "-- KEYS[1] ready      stream\n-- KEYS[2] owed       hash    x\n-- ARGV[1] n          number  x\n"
    "-- ARGV[2] force      flag    x\n-- ARGV[3] policy     json    x\n-- ARGV[4] group      text    x\n"
    "-- ARGV[5] unused     text    x\n"
    "--@include b, a\nif force then\n  --@include c\n  return c(n, policy)\nend\n\n-- A comment.\n"
    "return b(group, 'owed')\n",
    "include/a": "-- A.\nlocal function a()\n  return redis.call('XLEN', ready)\nend\n\nlocal function idle() end\n",
    "include/b": "-- B.\n--@include a\nlocal function b(x)\n  return a() .. x\nend\n",
    "include/c": "-- C.\n--@include a\nlocal ONE = 1\nlocal function c()\n  return a() + ONE\nend\n",
    "bare": "-- ARGV[1] n          text    x\nreturn n\n",
    "cyclic": "--@include d\nreturn d()\n",
    "include/d": "--@include e\nlocal function d() end\n",
    "include/e": "--@include d\nlocal function e() end\n",
    "loose": "--@include f\nreturn f()\n",
    "include/f": "-- F.\nredis.log()\nlocal function f() end\n",
}


def test_rendering() -> None:
    """Keys, includes in order, arguments, code; each include once, what a branch alone needs in the branch."""
    assert render("script", SOURCES.__getitem__).splitlines() == [
        *("-- Lisa: script", "local ready = KEYS[1]"),
        *("local function a()", "  return redis.call('XLEN', ready)", "end"),
        *("local function b(x)", "  return a() .. x", "end"),
        "local n, force, policy, group = tonumber(ARGV[1]), ARGV[2] == '1', cjson.decode(ARGV[3]), ARGV[4]",
        "if force then",
        *("local function c()", "  return a() + 1", "end"),
        *("  return c(n, policy)", "end", "return b(group, 'owed')"),
    ]
    assert render("bare", SOURCES.__getitem__).splitlines() == ["-- Lisa: bare", "local n = ARGV[1]", "return n"]
    header = read_header(SOURCES["script"])
    assert header.keys == ("ready", "owed")
    assert header.args == ("n", "force", "policy", "group", "unused")


def test_a_cycle_of_includes_is_refused() -> None:
    """With the names that are on it."""
    with pytest.raises(ValueError, match=r"includes form a cycle: d -> e -> d$"):
        render("cyclic", SOURCES.__getitem__)


def test_an_include_holds_definitions_only() -> None:
    """Anything else would run in every script, whether it needs the include's definitions or not."""
    with pytest.raises(ValueError, match=r"only local definitions; f begins with 'redis.log\(\)'"):
        render("loose", SOURCES.__getitem__)


def test_constants_of_includes_are_replaced_by_their_values() -> None:
    """Outside of strings; a variable of an include stays."""
    sources = {
        "include/c": "local SIZE = 4 * 2\nlocal LESS = -1\nlocal NAME = 'SIZE'\nlocal PAGE = 7\nlocal spent = SIZE\n",
        "s": "--@include c\nreturn { SIZE / 2, LESS, NAME, 'PAGE', x.PAGE, PAGE, spent }\n",
    }
    text = render("s", sources.__getitem__)
    assert text == "-- Lisa: s\nlocal spent = (4 * 2)\nreturn { (4 * 2) / 2, (-1), 'SIZE', 'PAGE', x.PAGE, 7, spent }\n"


def test_bind_goes_by_the_header() -> None:
    """Keys in their order, arguments by name and as text, rows flattened; anything else is refused."""
    keys = ShardKeys("lisa", "orders")
    bound = load("purge").bind(keys, [("g/a", ""), ("g/b", 7)], window=1, now_ms="")
    assert bound[:3] == ("EVALSHA", load("purge").sha, "13")
    assert bound[3] == "lisa:{orders}:ready"
    assert bound[16:] == ("", "1", "g/a", "", "g/b", 7)
    assert load("join").bind(keys, group="g", most=0)[2:] == ("1", "lisa:{orders}:ready", "g", "0")
    with pytest.raises(TypeError, match="arguments of join"):
        load("join").bind(keys)
    with pytest.raises(TypeError, match="arguments of join"):
        load("join").bind(keys, group="g", most=0, more=1)
    with pytest.raises(TypeError, match="takes no rows"):
        load("trim").bind(keys, [("x",)], spent_ms=1, silent_ms=1)
