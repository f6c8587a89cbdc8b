"""The JSON API over HTTP: all features of Lisa, described by an OpenAPI document."""

from lisa_gateway.v1.api import mount, openapi

__all__ = ["mount", "openapi"]
