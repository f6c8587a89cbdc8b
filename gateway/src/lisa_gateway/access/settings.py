"""Settings: who may use a gateway."""

import ipaddress
from collections import Counter
from functools import cached_property
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator
from pydantic_settings import NoDecode

from lisa_common.errors import InvalidInput, InvalidSettings
from lisa_common.settings import Settings
from lisa_gateway.access.grants import Grant
from lisa_gateway.json_text import json_list

__all__ = ["AccessSettings"]

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AccessSettings(Settings):
    """Settings of access. Without grants everybody may do everything, which only loopback addresses allow."""

    grants: Annotated[
        tuple[Grant, ...],
        NoDecode,
        BeforeValidator(json_list),
        Field(repr=False, description="who may do what: tables [[gateway.grants]], or a JSON list of them"),
    ] = ()
    proxies: Annotated[
        str, Field(description="addresses and networks of trusted proxies, with commas between; they name the user")
    ] = ""
    proxy_user_header: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9-]+$", description="header in which a trusted proxy names the user"),
    ] = "X-Forwarded-User"
    insecure: Annotated[bool, Field(description="let everybody do everything, also from other machines")] = False

    @field_validator("grants")
    @classmethod
    def _grants_differ(cls, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        names = Counter(grant.name for grant in grants)
        tokens = Counter(token for grant in grants for token in set(grant.tokens))
        for name, count in names.items():
            if count > 1:
                raise ValueError(f"grants of different names; {count} are named {name!r}")
        for token, count in tokens.items():
            if count > 1:
                sharing = ", ".join(repr(grant.name) for grant in grants if token in grant.tokens)
                raise ValueError(f"grants with different tokens; one token is in those of {sharing}")
        return grants

    @field_validator("proxies")
    @classmethod
    def _proxies_are_networks(cls, value: str) -> str:
        _networks(value)
        return value

    @cached_property
    def proxy_networks(self) -> tuple[_Network, ...]:
        """The networks of trusted proxies."""
        return _networks(self.proxies)

    def is_proxy(self, host: str | None) -> bool:
        """Whether the address of a client is that of a trusted proxy."""
        if not self.proxy_networks or host is None:
            return False
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.proxy_networks)

    def check_address(self, host: str) -> None:
        """Raises InvalidSettings for an address that other machines can reach, unless grants or `insecure` are set."""
        if self.grants or self.insecure or is_loopback(host):
            return
        raise InvalidSettings(
            "setting listen must be a loopback address unless grants (see docs/http.md) or --insecure are set; "
            f"got {host!r}"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, judged by its name or address alone, without a look-up."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _networks(text: str) -> tuple[_Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidInput("proxies", text, "addresses and networks with commas between, as in 10.0.0.0/8") from None
