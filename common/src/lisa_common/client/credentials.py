"""Credentials that expire, such as tokens of Entra ID or IAM: a function of the user's provides them."""

import asyncio
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import redis.exceptions
from redis.credentials import CredentialProvider

from lisa_common.errors import InvalidInput
from lisa_common.escaping import named_text

__all__ = ["RENEW_S", "credential_provider"]

RENEW_S = 30.0
"""How often an open connection logs in again, with the credentials of that time."""

_FAILS = "the credential_provider fails"
_EXPECTED = "module:function of a function without arguments"


@cache
def credential_provider(target: str) -> CredentialProvider:
    """The provider behind `module:function`, imported from the working directory first. Raises InvalidInput.

    The function returns a provider of the Redis client, or each time the current credentials: user and password.
    """
    module, _, name = target.partition(":")
    if not module or not name:
        raise InvalidInput("credential_provider", target, _EXPECTED)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(import_module(module), name)
        first = function()
    except Exception as error:
        raise InvalidInput("credential_provider", target, f"{_EXPECTED} that works ({named_text(error)})") from error
    return _Guarded(first) if isinstance(first, CredentialProvider) else _Guarded(_OfFunction(function))


class _OfFunction(CredentialProvider):
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def get_credentials(self) -> Any:
        return self._function()

    async def get_credentials_async(self) -> Any:
        return await asyncio.to_thread(self._function)


class _Guarded(CredentialProvider):
    """Whatever a provider raises: there is no connection, and nothing was done."""

    def __init__(self, provider: CredentialProvider) -> None:
        self._provider = provider

    def get_credentials(self) -> Any:
        try:
            return _checked(self._provider.get_credentials())
        except Exception as error:
            raise redis.exceptions.ConnectionError(f"{_FAILS}: {named_text(error)}") from error

    async def get_credentials_async(self) -> Any:
        try:
            return _checked(await self._provider.get_credentials_async())
        except Exception as error:
            raise redis.exceptions.ConnectionError(f"{_FAILS}: {named_text(error)}") from error


def _checked(given: Any) -> tuple[str, ...]:
    credentials = (given,) if isinstance(given, str) else given
    if not isinstance(credentials, tuple) or not all(isinstance(each, str) for each in credentials):
        raise TypeError(f"it must return a user and a password; got a value of type {type(given).__name__}")
    return credentials
