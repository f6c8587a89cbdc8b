"""The JSON API of Lisa over HTTP: all that it can, described by an OpenAPI document."""

from lisa_gateway.v1.api import mount, openapi

__all__ = ["mount", "openapi"]
