"""Lisa over HTTP: the calls of camellia-delay-queue, served over the same keyspace as the Python programs.

application = app(GatewaySettings.load(redis_url="redis://localhost:6379"))
"""

from typing import TYPE_CHECKING

from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
    from lisa_common import __version__ as __version__
    from lisa_gateway.asgi import app as app, lifespan as lifespan
    from lisa_gateway.settings import GatewaySettings as GatewaySettings


if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "lisa_common": "__version__",
            "lisa_gateway.asgi": "app lifespan",
            "lisa_gateway.settings": "GatewaySettings",
        },
    )
