"""Finds undefined globals, unused locals, shadowed names and wakes that can fail a call in the text of a script."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import tree_sitter_lua
from tree_sitter import Language, Node, Parser

__all__ = ["GLOBALS", "Problem", "check"]

GLOBALS = frozenset(
    {
        *("KEYS", "ARGV", "redis", "cjson", "cmsgpack", "struct", "bit", "string", "table", "math"),
        *("error", "ipairs", "pairs", "pcall", "select", "tonumber", "tostring", "type", "unpack"),
    }
)
"""What a script finds at the server, as far as our scripts use it."""

_IGNORED = "_"
_PUBLISHES = re.compile(r"redis\s*\.\s*call\s*\(\s*['\"]PUBLISH", re.IGNORECASE)
_PARSER = Parser(Language(tree_sitter_lua.language()))


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a script; `code` is the line that has it."""

    line: int
    text: str
    code: str


def check(script: str) -> list[Problem]:
    """The problems of a script, in the order of its lines."""
    root = _PARSER.parse(script.encode()).root_node
    lines = script.splitlines()
    checker = _Checker()
    if root.has_error:
        checker.report(next(_errors(root)), "syntax error")
    else:
        checker.visit(root)
    return [Problem(line, text, lines[line - 1].strip()) for line, text in sorted(checker.found)]


def _errors(node: Node) -> Iterator[Node]:
    if node.is_error or node.is_missing:
        yield node
    for child in node.children:
        yield from _errors(child)


@dataclass(slots=True)
class _Local:
    node: Node
    is_read: bool = False


class _Checker:
    """Walks the tree in the order of execution, with the locals that are visible."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self._scopes: list[dict[str, _Local]] = []

    def report(self, node: Node, text: str) -> None:
        """Notes a problem."""
        self.found.append((node.start_point[0] + 1, text))

    def visit(self, node: Node) -> None:
        """Visits a node and what is in it."""
        match node.type:
            case "chunk" | "block":
                with self._scope():
                    self._visit_children(node)
            case "identifier":
                self._read(node)
            case "variable_declaration":
                self._visit_declaration(node)
            case "assignment_statement":
                self._visit_assignment(node)
            case "function_declaration" | "function_definition":
                self._visit_function(node)
            case "for_statement":
                self._visit_for(node)
            case "repeat_statement":
                # The condition sees the locals of the body.
                with self._scope():
                    self._visit_body(node)
                    self.visit(_child(node, "condition"))
            case "dot_index_expression" | "method_index_expression":
                self.visit(_child(node, "table"))
            case "field" if node.children[0].type != "[":
                self.visit(_child(node, "value"))
            case _:
                self._check_call(node)
                self._visit_children(node)

    def _check_call(self, node: Node) -> None:
        """A wake that the server refuses must not fail a call that has written: it is published by `redis.pcall`."""
        if node.type == "function_call" and _PUBLISHES.match(_text(node)):
            self.report(node, "PUBLISH by redis.call")

    @contextmanager
    def _scope(self) -> Iterator[None]:
        self._scopes.append({})
        yield
        for name, local in self._scopes.pop().items():
            if not local.is_read and name != _IGNORED:
                self.report(local.node, f"unused local {name}")

    def _declare(self, node: Node) -> None:
        name = _text(node)
        if name != _IGNORED and (self._find(name) or name in GLOBALS):
            self.report(node, f"{name} shadows another {name}")
        self._scopes[-1][name] = _Local(node)

    def _find(self, name: str) -> _Local | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)

    def _read(self, node: Node) -> None:
        if local := self._find(_text(node)):
            local.is_read = True
        elif _text(node) not in GLOBALS:
            self.report(node, f"undefined global {_text(node)}")

    def _visit_children(self, node: Node) -> None:
        for child in node.named_children:
            self.visit(child)

    def _visit_body(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._visit_children(body)

    def _visit_body_with(self, names: Iterable[Node], node: Node) -> None:
        with self._scope():
            for name in names:
                self._declare(name)
            self._visit_body(node)

    def _visit_declaration(self, node: Node) -> None:
        [inner] = node.named_children
        names = inner
        if inner.type == "assignment_statement":
            names, values = inner.named_children
            self.visit(values)
        for name in names.children_by_field_name("name"):
            self._declare(name)

    def _visit_assignment(self, node: Node) -> None:
        targets, values = node.named_children
        self.visit(values)
        for target in targets.children_by_field_name("name"):
            if target.type != "identifier":
                self.visit(target)
            elif not self._find(_text(target)):
                self.report(target, f"undefined global {_text(target)}")

    def _visit_function(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        if name is not None and node.children[0].type == "local":
            self._declare(name)
        elif name is not None:
            self.report(name, f"global function {_text(name)}")
        self._visit_body_with(_child(node, "parameters").children_by_field_name("name"), node)

    def _visit_for(self, node: Node) -> None:
        clause = _child(node, "clause")
        if clause.type == "for_numeric_clause":
            names = clause.children_by_field_name("name")
            values = [child for child in clause.named_children if child not in names]
        else:
            names = clause.named_children[0].children_by_field_name("name")
            values = clause.named_children[1:]
        for value in values:
            self.visit(value)
        self._visit_body_with(names, node)


def _child(node: Node, field: str) -> Node:
    child = node.child_by_field_name(field)
    if child is None:
        raise ValueError(f"a {node.type} has no {field}")
    return child


def _text(node: Node) -> str:
    return (node.text or b"").decode()
