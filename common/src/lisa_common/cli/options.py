"""Options of commands; those for settings are derived from the settings' fields."""

import functools
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo, OptionInfo

from lisa_common.cli.output import say
from lisa_common.logs import configure_logging, event, is_json
from lisa_common.settings import Settings

__all__ = ["JsonFlag", "YesFlag", "argument", "bounds_of", "flag_of", "option", "with_options", "with_settings"]

logger = logging.getLogger(__name__)

JsonFlag = Annotated[bool, typer.Option("--json", help="One JSON document, for programs.")]
YesFlag = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


Complete = Callable[[typer.Context], list[str]]
"""Completes values, as `completed_by` makes it."""


def option(help: str, metavar: str | None = None, complete: Complete | None = None) -> OptionInfo:  # noqa: A002 - as typer has it
    """An option whose help tells its default, if it has one."""
    made: OptionInfo = typer.Option(help=help, metavar=metavar, show_default=False, autocompletion=complete)
    return made


def argument(help: str, metavar: str, complete: Complete | None = None) -> ArgumentInfo:  # noqa: A002 - as typer has it
    """An argument whose help tells its default, if it has one."""
    made: ArgumentInfo = typer.Argument(help=help, metavar=metavar, show_default=False, autocompletion=complete)
    return made


def with_settings(
    settings: type[Settings],
    *,
    shared_only: bool = False,
    defaults: Mapping[str, Any] = MappingProxyType({}),
    unused: Collection[str] = (),
) -> Callable[..., Callable[..., None]]:
    """Gives a command one option per field of the settings, and passes it `settings`, loaded from all sources.

    `shared_only` offers only the options that all programs have; the other fields come from environment and file.
    `defaults` are those of this command, in place of the settings'. `unused` fields are accepted and not shown. A
    command with a parameter `given` also gets the names of the fields for which the command line has an option.
    """
    names = Settings.model_fields if shared_only else settings.model_fields
    options = [
        _option(name, settings.model_fields[name], default=defaults.get(name), hidden=name in unused) for name in names
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(command).parameters
        own = [p for p in parameters.values() if p.name not in {"settings", "given"}]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            flags = {option.name: values.pop(option.name) for option in options}
            if "given" in parameters:
                values["given"] = frozenset(name for name, value in flags.items() if value is not None)
            try:
                loaded = settings.load(**flags)
                configure_logging(loaded.log_level, loaded.log_format)
            finally:
                _warn_of_secrets(flags)
            changed = {name: value for name, value in defaults.items() if name not in loaded.model_fields_set}
            command(settings=loaded.model_copy(update=changed), **values)

        _set_parameters(run, [*own, *options])
        return run

    return decorate


def with_options(
    parameter: str, options: Mapping[str, Any], make: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command options in place of a parameter, and passes it what `make` makes of their values, by name.

    `options` has their annotations by name. Those that are not given are None.
    """
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind, default=None, annotation=of) for name, of in options.items()]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())
        at = [each.name for each in own].index(parameter)

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in options}
            command(**{parameter: make(given)}, **values)

        _set_parameters(run, [*own[:at], *parameters, *own[at + 1 :]])
        return run

    return decorate


def _set_parameters(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> None:
    """Gives a command these parameters, as far as typer looks, which reads both the signature and the annotations."""
    by_name = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    command.__signature__ = inspect.Signature(by_name)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in by_name}


_IN_URL = re.compile(r"://[^/]*:[^/@]+@|password=")
_PRIVATE = "PRIVATE KEY-----"


def _warn_of_secrets(flags: Mapping[str, Any]) -> None:
    """Warns of secrets in the command line, which process lists show and shells store."""
    exposed = ["redis_url"] if _IN_URL.search(flags.get("redis_url") or "") else []
    exposed += [name for name in ("tls_key", "tls_cert") if _PRIVATE in (flags.get(name) or "")]
    exposed += [name for name in ("receipt_key", "secret") if flags.get(name)]
    for name in exposed:
        warning = f"others can read the secret in --{flag_of(name)}; set LISA_{name.upper()} instead"
        if is_json():
            logger.warning(warning, extra=event("secret_exposed", setting=name))
        else:
            say(f"warning: {warning}", error=True)


def _option(name: str, field: FieldInfo, *, default: Any, hidden: bool) -> inspect.Parameter:
    # Values are text: pydantic parses them like the environment, with the same errors.
    switch = field.annotation is bool
    text = f"{_sentence(field.description or name)}{bounds_of(field)}{_default(field, default)}"
    option = typer.Option(
        f"--{flag_of(name)}" + (f"/--no-{flag_of(name)}" if switch else ""),
        help=f"{text} (env LISA_{name.upper()})",
        show_default=False,
        metavar=None if switch else _metavar(field),
        rich_help_panel="Settings",
        hidden=hidden,
    )
    annotation = Annotated[bool | None, option] if switch else Annotated[str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def flag_of(name: str) -> str:
    """The option for a field."""
    return name.replace("_", "-")


def bounds_of(field: FieldInfo, show: Callable[[Any], str] = "{:,}".format) -> str:
    """The bounds of a field in words: ", 1 to 10". `show` is how a value is written."""
    marks = list(_marks(field))
    low = next((show(m.ge) for m in marks if isinstance(m, Ge)), None)
    low = low or next((f"above {show(m.gt)}" for m in marks if isinstance(m, Gt)), None)
    high = next((show(m.le) for m in marks if isinstance(m, Le)), None)
    high = high or next((f"below {show(m.lt)}" for m in marks if isinstance(m, Lt)), None)
    if get_origin(field.annotation) is Literal:
        return f", {' or '.join(map(str, get_args(field.annotation)))}"
    if low and high:
        return f", {low} to {high}"
    return f", from {low}" if low else f", up to {high}" if high else ""


def _marks(field: FieldInfo) -> Iterator[Any]:
    # The bounds of `int | None` are on the int: Annotated[int, Field(ge=1)] | None.
    yield from field.metadata
    for kind in get_args(field.annotation):
        for mark in getattr(kind, "__metadata__", ()):
            yield from mark.metadata if isinstance(mark, FieldInfo) else (mark,)


def _metavar(field: FieldInfo) -> str:
    if field.annotation in {int, float}:
        return "NUMBER"
    return "URL" if (field.description or "").endswith("URL") else "TEXT"


def _default(field: FieldInfo, other: Any = None) -> str:
    default = field.default if other is None else other
    if field.is_required() or default is None:
        return ""
    default = default.get_secret_value() if isinstance(default, SecretStr) else default
    if default in ("", (), {}):
        return ""
    # Defaults are documented, so they are no secrets.
    return f"; default {default}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] if text.split(maxsplit=1)[0].isalpha() else text
