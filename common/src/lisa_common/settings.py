"""Process settings: typed, bounded, from flags, `LISA_…` environment variables and `lisa.toml`, in this order.

`lisa.toml` lies in the working directory, or `LISA_CONFIG` names its path. Its top level holds the settings that all
programs share; each program has a table of its own:

    redis_url = "redis://localhost:6379"

    [manager]
    poll_s = 1.0
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from lisa_common.errors import InvalidInput, InvalidSettings, Verbatim
from lisa_common.tls import Tls
from lisa_common.validation import check_name, expected_by, read_address

__all__ = ["MAX_CONNECTIONS", "MetricsAddress", "Name", "Settings"]

MAX_CONNECTIONS = 64
"""Connections to each server, unless settings say otherwise."""

_TABLES = ("producer", "consumer", "manager", "gateway", "push")


def _check_address(value: str) -> str:
    read_address("metrics", value)
    return value


MetricsAddress = Annotated[str, AfterValidator(_check_address)] | None


def _check_named(value: str, info: ValidationInfo) -> str:
    return check_name(str(info.field_name), value)


Name = Annotated[str, AfterValidator(_check_named)]
"""A name, of a topic or a group for example. The error of an invalid name names its field."""

_OF_PROGRAMS = (
    *("batch_messages", "batch_bytes", "patience_s", "at_least_once"),
    *("concurrency", "prefetch", "block_s", "drain_s", "release", "process_messages", "process_bytes"),
    *("promote_batch", "resolution_s", "poll_s", "quiet_poll_s", "discover_s", "housekeeping_s", "housekeeping_batch"),
    *("spent_consumer_s", "metrics", "sample_s", "spans_per_s", "history_s", "history_h"),
    *("listen", "group", "ttl_s", "max_retries", "ack_timeout_s", "max_polls", "ended_s", "resend_ended"),
    *("root_path", "nack_at_once"),
    *("monitor_s", "access_log", "receipt_key", "grants", "insecure", "proxies", "proxy_user_header"),
    *("max_body_bytes", "max_header_bytes", "max_clients", "min_bytes_s", "slow_s"),
    *("targets", "secret", "request_s", "longest_pause_s"),
    *("dashboard", "dashboard_bodies", "dashboard_wait_s"),
)
"""Settings of single programs. Other programs accept their variables, as programs share environments."""

_FOREIGN = re.compile(
    # Of tests and benchmarks; and what Kubernetes sets for a service whose name begins with "lisa".
    r"LISA_(CONFIG$|TEST_|CHAOS_|(.*_)?(SERVICE_(HOST|PORT)|PORT)(_|$))"
)
"""Variables that are valid, although they are not settings."""


class Settings(BaseSettings):
    """Settings that all programs share."""

    model_config = SettingsConfigDict(env_prefix="LISA_", extra="forbid", frozen=True)
    table: ClassVar[str] = ""
    """The table of `lisa.toml` for this program."""

    redis_url: SecretStr = Field(
        SecretStr("redis://localhost:6379"),
        description="redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded:// URL",
    )
    tls_ca: str | None = Field(None, description="trusted certificates: a file, or the PEM text; else the system's")
    tls_cert: SecretStr | None = Field(
        None, description="certificate to show to a server that requests one: a file, or the PEM text"
    )
    tls_key: SecretStr | None = Field(
        None, description="key of tls_cert, unless tls_cert contains it: a file, or the PEM text"
    )
    tls_server_name: str | None = Field(
        None, description="the name in the server's certificate, if the URL has another host"
    )
    tls_pin: str | None = Field(
        None, description="SHA-256 of the certificates to trust, separated by commas, in place of authorities"
    )
    credential_provider: str | None = Field(
        None, description="module:function that provides user and password, for those that expire"
    )
    address_map: Annotated[dict[str, str], NoDecode] = Field(
        {}, description="reachable addresses by those that a Cluster or sentinels announce: host:port, or host"
    )
    prefix: Name = Field("lisa", description="first part of every key")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level that programs log"
    )
    log_format: Literal["text", "json"] = Field("text", description="log lines of text, or JSON objects, one a line")
    timeout_s: float = Field(10.0, ge=0.1, le=600, description="longest wait for a silent server, in seconds")

    max_connections: int = Field(
        MAX_CONNECTIONS,
        ge=4,
        le=10_000,
        description="most connections to each server; when all are in use, a call waits for one",
    )

    @property
    def tls(self) -> Tls:
        """TLS for `rediss://` URLs."""
        return Tls(self.tls_ca, _revealed(self.tls_cert), _revealed(self.tls_key), self.tls_server_name, self.tls_pin)

    @field_validator("address_map", mode="before")
    @classmethod
    def _read_map(cls, value: Any) -> Any:
        """A flag or a variable has JSON."""
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError:
            raise ValueError("a JSON object") from None

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and cls.model_fields[info.field_name or ""].annotation in {int, float}:
            raise ValueError("a number")
        return value

    if not TYPE_CHECKING:
        # Type checkers read the fields.

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                fields = type(self).model_fields
                raise InvalidSettings("\n".join(_line(problem, fields) for problem in error.errors())) from None

    @classmethod
    def load(cls, **flags: Any) -> Self:
        """Settings from all sources; a flag of None counts as not given. Raises InvalidSettings."""
        return cls(**{name: value for name, value in flags.items() if value is not None})

    @classmethod
    def of(cls, given: Self | None, **flags: Any) -> Self:
        """Settings as given, or from all sources. Raises InvalidSettings, and InvalidInput for another value."""
        if given is None:
            return cls.load(**flags)
        if not isinstance(given, cls):
            raise InvalidInput("settings", Verbatim(type(given).__name__), cls.__name__)
        return given

    @classmethod
    def load_from(cls, tables: Mapping[str, Any], *, name: str, **flags: Any) -> Self:
        """Settings of this program from a mapping that is built like `lisa.toml`; it wins over environment and file.

        Its top level holds what all programs share, and each program has a table of its own, such as `consumer`; other
        programs' tables are ignored. `name` is the mapping's own, for errors. Raises InvalidSettings.
        """
        return cls.load(**(_own_settings(cls, tables, name) | flags))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - part of the signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - part of the signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags before environment before file."""
        _check_environment(settings_cls.model_fields)
        return init_settings, env_settings, _TomlSource(settings_cls)


class _TomlSource(PydanticBaseSettingsSource):
    """The shared keys of `lisa.toml` and the program's own table; other programs check their tables themselves."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        named = os.environ.get("LISA_CONFIG")
        path = Path(named or "lisa.toml")
        if not named and not path.is_file():
            return {}
        # It is slow to import, and most programs have no file.
        import tomllib  # noqa: PLC0415

        try:
            content = tomllib.loads(path.read_text("utf-8-sig"))
        except OSError as error:
            raise InvalidSettings(f"cannot read settings from {path}: {error.strerror}") from None
        except ValueError as error:
            raise InvalidSettings(f"{path} is no TOML: {error}") from None
        return _own_settings(self.settings_cls, content, str(path))


def _own_settings(kind: type[BaseSettings], content: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """What is for one program among the shared settings and the tables of all. Raises InvalidSettings."""
    table = getattr(kind, "table", "")
    own = content.get(table, {})
    shared = {name: value for name, value in content.items() if name not in _TABLES}
    for name, value in shared.items():
        if name not in Settings.model_fields:
            if isinstance(value, Mapping):
                raise InvalidSettings(f"{origin}: table must be one of {', '.join(_TABLES)}; got {name!r}")
            known = ", ".join(Settings.model_fields)
            owner = ", or in the table of its program" if name in {*kind.model_fields, *_OF_PROGRAMS} else ""
            raise InvalidSettings(f"{origin}: setting must be one of {known}{owner}; got {name!r}")
    if not isinstance(own, Mapping):
        raise InvalidSettings(f"{origin}: {table} must be a table")
    for name in own:
        if name not in kind.model_fields:
            known = ", ".join(kind.model_fields)
            raise InvalidSettings(f"{origin}: setting in [{table}] must be one of {known}; got {name!r}")
    return {**shared, **own}


def _check_environment(known: Collection[str]) -> None:
    """Raises InvalidSettings for a variable that looks like a setting but belongs to no program."""
    names = {f"LISA_{name.upper()}" for name in {*known, *Settings.model_fields, *_OF_PROGRAMS}}
    for variable in os.environ:
        name = variable.upper()
        if name.startswith("LISA_") and name not in names and not _FOREIGN.match(name):
            [closest] = get_close_matches(name, sorted(names), 1, 0.0)
            expected = f"that of a setting, such as {closest}"
            raise InvalidSettings(f"name of an environment variable must be {expected}; got {variable!r}")


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _line(problem: Any, known: Mapping[str, FieldInfo]) -> str:
    *table, last = map(str, problem["loc"] or ("settings",))
    name = ".".join((*table, last))
    if problem["type"] == "extra_forbidden":
        # The value of an unknown setting may be a secret.
        expected = (
            f"setting {'.'.join(table)} must have known fields"
            if table
            else f"setting must be one of {', '.join(known)}"
        )
        return f"{expected}; got {last!r}"
    # A part of a setting is as secret as all of it.
    field = known.get(table[0] if table else last)
    is_secret = field is None or not field.repr or "SecretStr" in str(field.annotation)
    value = "" if is_secret else f"; got {problem['input']!r}"
    expected = "a table" if problem["type"] == "model_type" else expected_by(problem)
    return f"setting {name} must be {expected}{value}"
