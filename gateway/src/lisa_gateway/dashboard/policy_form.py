"""The form of a policy, made from the fields that policies have: a new field appears by itself."""

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from lisa_common.cli.options import bounds_of
from lisa_common.cli.output import shown_exactly
from lisa_common.cli.parse import read_duration
from lisa_common.cli.policy_fields import MS, described, plain_name
from lisa_common.errors import InvalidInput
from lisa_common.model.policy import DEFAULT_POLICY, Policy, PolicyFields
from lisa_common.validation import duration_ms, expected_by
from lisa_gateway.json_text import decode
from lisa_manager import DEFAULT

__all__ = ["FormField", "changes", "form_fields"]


@dataclass(frozen=True, slots=True)
class FormField:
    """One field of the form."""

    name: str
    label: str
    """As commands name it: without its unit."""
    help: str
    value: str
    """As shown; empty for none."""
    default: str
    choices: tuple[str, ...] = ()
    """All values, where there are only a few."""
    is_set: bool = False
    """Whether the topic's policy sets it; otherwise it follows the default."""


def _shown(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith(MS):
        return shown_exactly(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _choices(annotation: Any) -> tuple[str, ...]:
    if annotation is bool:
        return ("false", "true")
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


def form_fields(policy: Policy) -> list[FormField]:
    """The fields of a policy with their values."""
    return [
        FormField(
            name,
            plain_name(name),
            described(name),
            _shown(name, getattr(policy, name)),
            _shown(name, getattr(DEFAULT_POLICY, name)),
            _choices(field.annotation),
            name in policy.model_fields_set,
        )
        for name, field in PolicyFields.model_fields.items()
    ]


def _plain(name: str, text: str) -> str:
    """The text of a field as the policy reads it: durations in ms."""
    if not name.endswith(MS):
        return text
    field = f"policy field {name}"
    return str(duration_ms(field, read_duration(field, text, needs_unit=True)))


def _seen(text: str) -> dict[str, Any]:
    try:
        values = decode((text or "{}").encode())
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidInput("seen", text[:100], "the values with which the form was shown")
    return values


def changes(policy: Policy, form: dict[str, str]) -> dict[str, Any]:
    """What a sent form changes in a policy; an empty field goes back to its default. Raises InvalidInput.

    A field that has the value with which it was shown is left alone, as somebody else may have changed it since.
    """
    seen = _seen(form.get("seen", ""))
    names = [field.name for field in form_fields(policy) if field.name in form]
    given = {name: form[name].strip() for name in names if form[name].strip() != seen.get(name)}
    texts = {name: _plain(name, text) for name, text in given.items() if text}
    try:
        read = Policy.model_validate_strings(texts, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "policy"
        bounds = bounds_of(Policy.model_fields[name], shown_exactly) if name.endswith(MS) else ""
        expected = bounds.removeprefix(", ") or expected_by(first)
        raise InvalidInput(f"policy field {name}", given.get(name), expected) from None
    changed: dict[str, Any] = {}
    for name, text in given.items():
        if not text and name in policy.model_fields_set:
            changed[name] = DEFAULT
        elif text and getattr(read, name) != getattr(policy, name):
            changed[name] = getattr(read, name)
    return changed
