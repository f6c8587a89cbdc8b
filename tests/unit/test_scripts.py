"""Scripts are what their headers say: a call goes by the header, so the header must not lie."""

import re
from pathlib import Path

import pytest

from lisa_common.model.keys import TOPIC_KEYS, ShardKeys
from lisa_common.protocol.scripts import SCRIPT_NAMES, load

LUA = Path(__file__).parents[2] / "lua"
SCRIPTS = sorted(LUA.glob("*.lua"))
INCLUDES = sorted((LUA / "include").glob("*.lua"))
KEY = re.compile(r"^-- KEYS\[(\d+)\] (\w+) +(zset|hash|stream|string)(?: +\w|$)", re.MULTILINE)
ARG = re.compile(r"^-- ARGV\[(\d+)(\.\.\.)?\] (\w+)", re.MULTILINE)
INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)

every_script = pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
every_file = pytest.mark.parametrize("path", SCRIPTS + INCLUDES, ids=lambda path: path.relative_to(LUA).as_posix())


def header(path: Path) -> str:
    """The comment lines that a script begins with."""
    lines = path.read_text("utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("-- ") and line != "--")
    return "\n".join(lines[:end])


def code(path: Path) -> str:
    """A script without its comments."""
    return re.sub(r"--.*", "", path.read_text("utf-8"))


def includes(path: Path) -> list[str]:
    """The includes that a script names."""
    return INCLUDE.findall(path.read_text("utf-8"))


def test_every_script_is_listed() -> None:
    """`SCRIPT_NAMES` names the files there are."""
    assert list(SCRIPT_NAMES) == [path.stem for path in SCRIPTS]


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
    assert len(args) == kinds.count("ARGV")
    assert [int(number) for number, *_ in keys] == list(range(1, len(keys) + 1))
    assert [int(number) for number, *_ in args] == list(range(1, len(args) + 1))
    assert [rest for _, rest, _ in args if rest] in ([], [rest for _, rest, _ in args[-1:]]), (
        "only the last argument repeats"
    )


@every_script
def test_keys_are_those_of_the_topic(path: Path) -> None:
    """Names of keys are those of the keyspace, each at most once, each with the type that all scripts give it."""
    named = [(name, kind) for _, name, kind in KEY.findall(header(path))]
    assert {name for name, _ in named} <= {*TOPIC_KEYS, "dropped", "topics"}
    assert len(dict(named)) == len(named)
    types = {name: kind for other in SCRIPTS for _, name, kind in KEY.findall(header(other))}
    assert dict(named).items() <= types.items()


@every_script
def test_declared_is_used_and_used_is_declared(path: Path) -> None:
    """Every KEYS[n] and ARGV[n] of the header is used by its number, and no other; no key is made up."""
    text, body = header(path), code(path)
    keys = {number for number, _, _ in KEY.findall(text)}
    everything = keys if "unpack(KEYS)" in body else set()
    assert set(re.findall(r"KEYS\[(\d+)\]", body)) | everything == keys
    single = {number for number, rest, _ in ARG.findall(text) if not rest}
    first = next((number for number, rest, _ in ARG.findall(text) if rest), None)
    used = set(re.findall(r"ARGV\[(\d+)\]", body))
    assert single <= used
    assert used <= single | {first}
    loops = set(re.findall(r"(?:for \w+ = |unpack\(ARGV, )(\d+)(?:, #ARGV\b|\))", body))
    assert loops == ({first} if first else set()), "rows begin where the header says"
    assert not re.search(r"KEYS\[[^\d]|ARGV\[[^\d\]]*\]\s*=", body)


@every_script
def test_keys_are_named(path: Path) -> None:
    """A script's locals for its keys have the names of the header, in its order."""
    declared = [name for _, name, _ in KEY.findall(header(path))]
    named: list[str] = []
    for match in re.finditer(r"^local ([\w, ]+) = ((?:KEYS\[\d+\](?:, )?)+)$", code(path), re.MULTILINE):
        named += match[1].split(", ")
    assert named == declared or "unpack(KEYS)" in code(path)


@every_script
def test_step_of_rows(path: Path) -> None:
    """A loop over rows advances by the number of values that the header names for one."""
    row = load(path.stem).row
    steps = re.findall(r"(?:for \w+ = |unpack\(ARGV, )\d+(?:, #ARGV(?:, (\d+))? do|\))", code(path))
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


def test_includes_exist_and_are_used() -> None:
    """Every include that is named exists, every one that exists is named, and none includes another."""
    named = {name for path in SCRIPTS for name in includes(path)}
    assert named == {path.stem for path in INCLUDES}
    assert [path for path in INCLUDES if includes(path)] == []


@every_script
def test_functions_are_included_before_their_use(path: Path) -> None:
    """Every function of an include that a script needs, itself or by another include, stands above the need."""
    homes = {
        match[1]: include.stem
        for include in INCLUDES
        for match in re.finditer(r"^local function (\w+)", code(include), re.MULTILINE)
    }
    text = re.sub(r"--(?!@include).*", "", path.read_text("utf-8"))
    known: set[str] = set()
    for part in re.split(r"^(--@include \w+)$", text, flags=re.MULTILINE):
        include = INCLUDE.fullmatch(part)
        body = code(LUA / "include" / f"{include[1]}.lua") if include else part
        called = set(re.findall(r"(?<![\w.])(\w+)\(", body)) & homes.keys()
        own = set(re.findall(r"local function (\w+)", body))
        missing = {name: homes[name] for name in called - known - own}
        assert missing == {}, "include these"
        if include:
            known |= own


@every_script
def test_every_include_is_needed(path: Path) -> None:
    """A script includes nothing that neither it nor its includes use."""
    bodies = {name: code(LUA / "include" / f"{name}.lua") for name in includes(path)}
    for name, body in bodies.items():
        offered = re.findall(r"^local (?:function )?([\w, ]+?)(?: =|\()", body, re.MULTILINE)
        offers = {word for words in offered for word in words.split(", ")}
        others = code(path) + "".join(other for n, other in bodies.items() if n != name)
        assert offers & set(re.findall(r"\w+", others)), f"{name} is not needed"


def test_no_include_is_left_unresolved() -> None:
    """What is loaded has its includes in it, and another text has another hash."""
    loaded = [load(name) for name in SCRIPT_NAMES]
    assert [script.name for script in loaded if "@include" in script.text] == []
    assert len({script.sha for script in loaded}) == len(loaded)


def test_functions_that_are_not_called_are_left_out() -> None:
    """A script takes of its includes what it uses, itself or by another function that it uses, and no more."""
    for script in map(load, SCRIPT_NAMES):
        text = re.sub(r"--.*", "", script.text)
        functions = re.findall(r"^local function (\w+)", text, re.MULTILINE)
        assert [name for name in functions if len(re.findall(rf"\b{name}\b", text)) == 1] == []
    assert "function read_limits" in load("send").text
    assert "function read_record" not in load("send").text


def test_bind_goes_by_the_header() -> None:
    """Keys in their order, arguments by name, rows flattened; anything else is refused."""
    keys = ShardKeys("lisa", "orders")
    bound = load("purge").bind(keys, [("g/a",), ("g/b",)])
    assert bound[0] == 7
    assert bound[1] == "lisa:{orders}:ready"
    assert bound[8:] == ("g/a", "g/b")
    assert load("join").bind(keys, group="g", most=0) == (1, "lisa:{orders}:ready", "g", 0)
    with pytest.raises(TypeError, match="join takes"):
        load("join").bind(keys)
    with pytest.raises(TypeError, match="join takes"):
        load("join").bind(keys, group="g", most=0, more=1)
    with pytest.raises(TypeError, match="takes no rows"):
        load("trim").bind(keys, [("x",)], spent_ms=1)
