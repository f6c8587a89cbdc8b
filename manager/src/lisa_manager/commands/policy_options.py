"""Options of `topic set` and `policy set`, from the fields of a policy: durations are written as `--visibility 30s`."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, get_args

import typer

from lisa_common.cli.options import bounds_of, flag_of, with_options
from lisa_common.cli.output import shown_exactly
from lisa_common.cli.parse import read_duration
from lisa_common.cli.policy_fields import MS, described, plain_name
from lisa_common.errors import InvalidInput
from lisa_common.model.policy import INTERNAL_FIELDS, Policy
from lisa_common.validation import duration_ms
from lisa_manager import DEFAULT

__all__ = ["shown_field", "shown_fields", "with_fields", "with_policy"]

_FLAGS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}


def with_fields(
    names: Iterable[str], other_names: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command one option for each of these fields of a policy, and passes it `changes`: those that were given.

    The value `default` sets a field back. `other_names` are those of options that cannot be named as their fields.
    """
    fields = {other_names.get(name) or plain_name(name): name for name in names}

    def read_changes(texts: dict[str, str | None]) -> dict[str, Any]:
        return {fields[plain]: _read(fields[plain], text) for plain, text in texts.items() if text is not None}

    return with_options("changes", {plain: _option(name, plain) for plain, name in fields.items()}, read_changes)


def _option(name: str, plain: str) -> Any:
    field = Policy.model_fields[name]
    text = described(name)
    # A duration is stored in ms, and written with its unit.
    bounds = bounds_of(field, shown_exactly) if name.endswith(MS) else bounds_of(field)
    option = typer.Option(
        f"--{flag_of(plain)}",
        help=f"{text[:1].upper()}{text[1:]}{bounds}; default {shown_field(name, field.default)}",
        metavar="TIME" if name.endswith(MS) else "VALUE",
        show_default=False,
        rich_help_panel="Policy",
    )
    return Annotated[str | None, option]


def _read(name: str, text: str) -> Any:
    kinds = get_args(Policy.model_fields[name].annotation) or (Policy.model_fields[name].annotation,)
    if text == "default":
        return DEFAULT
    if text == "none" and type(None) in kinds:
        return None
    if name.endswith(MS):
        # /v1 and Admin take the same fields in ms, so that 30000 alone might mean 30 s.
        plain = name.removesuffix(MS)
        return duration_ms(plain, read_duration(plain, text, needs_unit=True))
    if bool in kinds:
        if text not in _FLAGS:
            raise InvalidInput(name, text, "yes or no")
        return _FLAGS[text]
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                raise InvalidInput(name, text, "a whole number" if kind is int else "a number") from None
    return text


def shown_field(name: str, value: Any) -> str:
    """A field's value as people write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return shown_exactly(value) if name.endswith(MS) else str(value)


def shown_fields(fields: Mapping[str, Any]) -> str:
    """Fields and their values as people write them, in one line."""
    return ", ".join(
        f"{plain_name(name)} {shown_field(name, fields[name])}" for name in Policy.model_fields if name in fields
    )


with_policy = with_fields(name for name in Policy.model_fields if name not in INTERNAL_FIELDS)
"""Gives a command options for all fields that may be set for a topic."""
