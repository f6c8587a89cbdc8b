"""Lisa over HTTP: the calls of camellia-delay-queue, served over the same keyspace as the Python programs.

application = app(GatewaySettings.load(redis_url="redis://localhost:6379"))
"""

from lisa_common import __version__
from lisa_gateway.app import app, lifespan
from lisa_gateway.settings import GatewaySettings

__all__ = ["GatewaySettings", "__version__", "app", "lifespan"]
