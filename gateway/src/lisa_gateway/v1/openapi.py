"""The OpenAPI 3.1 document of /v1, made of the operations and their models."""

import re
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from typing_extensions import TypedDict

from lisa_common.validation import MAX_ID_BYTES, MAX_NAME_LENGTH
from lisa_gateway.access import Rule, Scope
from lisa_gateway.problems import MEDIA_TYPE, PROBLEMS
from lisa_gateway.v1.operation import Operation
from lisa_gateway.v1.stream import STREAMS

__all__ = ["document"]

_REF = "#/components/schemas/{model}"
_JSON = "application/json"
_BYTES = {"type": "string", "format": "binary"}
"""A body of any bytes. Generators of clients know only this form, of OpenAPI 3.0; to OpenAPI 3.1 it says nothing."""

_NAME = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": "^[A-Za-z0-9_.:-]+$"}
_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "topic": ("The topic.", _NAME),
    "group": ("The consumer group.", _NAME),
    "worker": ("The name of the worker.", {"type": "string", "minLength": 1}),
    "id": (
        f"The message id: printable text of at most {MAX_ID_BYTES} bytes. It may hold slashes, percent-encoded or not.",
        {"type": "string", "minLength": 1, "maxLength": MAX_ID_BYTES},
    ),
}

_STATUS = {
    400: "A value of the request is not allowed; nothing was done, except for what the counts of a stream report",
    401: "The request does not say who calls",
    403: "The caller may not do this",
    404: "There is no such topic, group, message or path",
    408: "The body arrives too slowly",
    409: "The state of the message or topic does not allow this",
    413: "The body is too large",
    415: "The content type is not supported",
    429: "A quota of the caller's grant is used up; nothing was done",
    500: "The gateway has an error, which its log shows; the request may have been carried out",
    502: "The server of messages does not accept the gateway, has an error, or its reply cannot be read",
    503: "The server of messages is away, or refuses for now",
    504: "The server of messages broke off, or did a part; the request may have been carried out",
}
_ALWAYS = (400, 401, 403, 404, 429, 500, 502, 503, 504)
_WITH_BODY = (408, 413, 415)
_CONFLICT = 409

_DESCRIPTION = """\
Messages that become readable when they are due. Times are ms since 1970 by the server's clock; durations are seconds,
or text such as `15m`. A message is delivered until it is acked, nacked to its last attempt, or rejected. Errors are
problem details (RFC 9457)."""


class _ProblemDetails(TypedDict):
    """A problem. Further members depend on its type: field, value and expected of an input that is not allowed."""

    type: str
    title: str
    status: int
    detail: str


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    problem = _schema(_ProblemDetails, "serialization", schemas)
    types = [f"urn:lisa:problem:{kind}" for kind in PROBLEMS]
    schemas[problem["$ref"].rpartition("/")[2]]["properties"]["type"] = {"type": "string", "enum": types}
    schemas["Problem"] = schemas.pop("_ProblemDetails") | {"title": "Problem"}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lisa",
            "version": metadata.version("lisa-gateway"),
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [_part(name) for name in re.findall(r"{(\w+)}", operation.path)]
    if operation.query is not None:
        parameters += _query(operation.query, schemas)
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _needs(operation.rule),
        "x-lisa-scope": operation.rule.scope,
        "x-lisa-roles": list(operation.rule.roles),
        "parameters": parameters,
        "responses": _responses(operation, schemas),
    }
    if operation.has_body:
        described["requestBody"] = _body(operation, schemas)
    return described


def _needs(rule: Rule) -> str:
    of = {
        Scope.TOPIC: "for the topic",
        Scope.RECEIPTS: "for the topics of all receipts",
        Scope.ALL_TOPICS: "for all topics",
        Scope.OWN_TOPICS: "and shows the topics for which the caller has it",
    }
    return f"Needs the role {' or '.join(f'`{role}`' for role in rule.roles)} {of[rule.scope]}."


def _part(name: str) -> dict[str, Any]:
    description, schema = _PARTS[name]
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


def _query(model: type, schemas: dict[str, Any]) -> list[dict[str, Any]]:
    schema = _json_schema(model, "validation")
    schemas |= schema.get("$defs", {})
    required = schema.get("required", ())
    parameters = []
    for name, described in schema["properties"].items():
        field = dict(described)
        # A parameter that is not given says null; no text does.
        branches = [branch for branch in field.pop("anyOf", ()) if branch != {"type": "null"}]
        if branches:
            field |= branches[0] if len(branches) == 1 else {"anyOf": branches}
        description = field.pop("description", "")
        parameter = {"name": name, "in": "query", "required": name in required, "schema": field}
        parameters.append(parameter | ({"description": description} if description else {}))
    return parameters


def _body(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.body is not None:
        content[_JSON] = {"schema": _schema(operation.body, "validation", schemas)}
    if operation.takes_bytes:
        if operation.body is not None:
            lines = "Lines, each a message as in application/json"
            content[STREAMS[0]] = {"schema": {"type": "string", "description": lines}}
        content["application/octet-stream"] = content["*/*"] = {"schema": _BYTES}
        content["text/plain"] = {"schema": {"type": "string"}}
    return {"required": operation.body_required and not operation.takes_bytes, "content": content}


def _responses(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, model in operation.answers.items():
        adapter = _schema(model, "serialization", schemas)
        responses[str(status)] = {"description": "Done", "content": {_JSON: {"schema": adapter}}}
    with_body = _WITH_BODY if operation.has_body else ()
    conflict = (_CONFLICT,) if operation.conflicts else ()
    for status in sorted({*_ALWAYS, *with_body, *conflict}):
        schema = {"$ref": _REF.format(model="Problem")}
        responses[str(status)] = {"description": _STATUS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
    return responses


def _schema(model: Any, mode: JsonSchemaMode, schemas: dict[str, Any]) -> dict[str, Any]:
    """A reference to a model's schema, which is added to the others; a union is written in place."""
    schema = _json_schema(model, mode)
    schemas |= schema.get("$defs", {})
    own = {name: value for name, value in schema.items() if name != "$defs"}
    if "title" not in own:
        return own
    schemas[own["title"]] = own
    return {"$ref": _REF.format(model=own["title"])}


@cache
def _json_schema(model: Any, mode: JsonSchemaMode) -> dict[str, Any]:
    schema = TypeAdapter(model).json_schema(ref_template=_REF, mode=mode)
    for part in (schema, *schema.get("$defs", {}).values()):
        for field in part.get("properties", {}).values():
            # Told in words: to openapi-typescript, a member with a default is one that must be sent.
            if default := field.pop("default", None):
                field["description"] = "; ".join(filter(None, (field.get("description"), f"by default {default}")))
    return schema
