"""Our check of the Lua scripts finds what it should, and nothing else."""

import pytest

from lint.lua import check
from lisa_common.protocol.scripts import load


@pytest.mark.parametrize(
    ("script", "problems"),
    [
        pytest.param("return redis.call('GET', KEYS[1])", [], id="globals of the server"),
        pytest.param("return redis.call('GET', key)", ["undefined global key"], id="undefined global"),
        pytest.param("return HGET(KEYS[1])", ["undefined global HGET"], id="undefined function"),
        pytest.param("count = 1", ["undefined global count"], id="assigned global"),
        pytest.param("function f() end", ["global function f"], id="global function"),
        pytest.param("f()\nlocal function f() return f end", ["undefined global f"], id="used before it is there"),
        pytest.param("local a, b = 1, 2\nreturn b", ["unused local a"], id="unused local"),
        pytest.param("local a\na = 1", ["unused local a"], id="local that is only written"),
        pytest.param("local function f(a, b) return a end\nreturn f()", ["unused local b"], id="unused parameter"),
        pytest.param("for i, v in ipairs(KEYS) do error(v) end", ["unused local i"], id="unused loop variable"),
        pytest.param("for _, v in ipairs(KEYS) do error(v) end", [], id="underscore"),
        pytest.param("for i = 1, #ARGV do error(i) end", [], id="numeric loop"),
        pytest.param("local a = 1\ndo local a = a error(a) end", ["a shadows another a"], id="shadowed in a block"),
        pytest.param("local a = 1\nlocal a = a\nreturn a", ["a shadows another a"], id="declared twice"),
        pytest.param("local a = 1\nreturn function(a) return a end, a", ["a shadows another a"], id="by a parameter"),
        pytest.param("local a = 1\nfor a = 1, a do error(a) end", ["a shadows another a"], id="by a loop"),
        pytest.param("local type = ARGV[1]\nreturn type", ["type shadows another type"], id="shadowed global"),
        pytest.param("do local a = 1 error(a) end\nlocal a = 2\nreturn a", [], id="one after the other"),
        pytest.param("repeat local a = ARGV[1] until a", [], id="until sees the locals of its body"),
        pytest.param("local t = { a = 1 }\nreturn t.b, t:c()", [], id="fields are no globals"),
        pytest.param("local k = 1\nreturn { [k] = 2 }", [], id="computed field"),
        pytest.param(
            "redis.call('PUBLISH', KEYS[1], 'x')", ["PUBLISH by redis.call"], id="a wake that can fail a call"
        ),
        pytest.param("redis.pcall('PUBLISH', KEYS[1], 'x')", [], id="a wake that cannot"),
        pytest.param("return (", ["syntax error"], id="syntax error"),
    ],
)
def test_problems(script: str, problems: list[str]) -> None:
    """Each once, and none where there is none."""
    assert [problem.text for problem in check(script)] == problems


def test_problems_have_their_lines() -> None:
    """The number, and the code."""
    [problem] = check("local a = 1\n  error(b, a)\n")
    assert (problem.line, problem.code) == (2, "error(b, a)")


def test_a_fault_in_a_real_script_is_found() -> None:
    """Among all that is right."""
    text = load("send").text
    assert check(text) == []
    faulty = text.replace("return #rows", "local extra = 1\nreturn answers and #rows")
    assert {problem.text for problem in check(faulty)} == {
        "undefined global answers",
        "unused local extra",
    }
