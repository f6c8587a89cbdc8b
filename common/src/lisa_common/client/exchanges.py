"""Adds to the Redis client's blocking connections exchanges without its layers. `async_progress` has the twin."""

import math
import select
import time
from contextlib import suppress
from typing import Any

import hiredis
import redis.exceptions

from lisa_common.client.credentials import RENEW_S
from lisa_common.client.options import CHECK_S, IDLE_S, PING
from lisa_common.client.refusals import Refusals
from lisa_common.client.translation import is_command_refused, is_reply
from lisa_common.model.needs import Optional

__all__ = ["quick"]

_HAS_POLL = hasattr(select, "poll")


def quick(kind: type[Any]) -> type[Any]:
    """A subclass with `send_packed`, `read_replies`, `is_ready` and `prepare`: the client's own take twice the time."""
    return type("Connection", (_Quick, kind), {})


class _Quick:
    """What `quick` puts before a class of connections."""

    _login_until = math.inf
    """Until when its credentials are good, by the same clock."""
    _fresh_until = 0.0
    """Until when it need not be checked by a PING, by the monotonic clock."""

    _poll: Any = None
    _polled: Any = None
    """The socket that `_poll` looks at."""

    def __init__(self, *args: Any, refusals: Refusals | None = None, **options: Any) -> None:
        self._refusals = refusals or Refusals()
        super().__init__(*args, **options)

    def check_health(self: Any) -> None:
        """As the client's; but a server that refuses PING answers, too."""
        with suppress(redis.exceptions.ResponseError):
            super().check_health()  # type: ignore[misc]

    def on_connect_check_health(self: Any, check_health: bool = True) -> None:  # noqa: FBT001, FBT002 - as the client has it
        """Logs in, and gives the connection its name, unless the server refuses names."""
        if Optional.NAME in self._refusals:
            self.client_name = None
        try:
            super().on_connect_check_health(check_health)  # type: ignore[misc]
        except redis.exceptions.ResponseError as error:
            if not self.client_name or not is_command_refused(error):
                raise
            self._refusals.note(Optional.NAME, error)
            self.on_connect_check_health(check_health)
        if self.credential_provider:
            self._login_until = time.monotonic() + RENEW_S

    def send_packed(self: Any, data: bytes) -> None:
        """Writes packed commands, on a connection that is ready."""
        self._sock.sendall(data)

    def read_replies(self: Any, count: int) -> list[Any]:
        """So many replies, errors of the server among them."""
        read = self._parser.read_response
        replies = []
        for _ in range(count):
            try:
                replies.append(read())
            except redis.exceptions.ConnectionError as error:
                if not is_reply(error):
                    raise
                replies.append(error)
        fresh_until = time.monotonic() + (IDLE_S if self.health_check_interval else math.inf)
        self._fresh_until = min(fresh_until, self._login_until)
        return replies

    def is_ready(self: Any) -> bool:
        """Whether it is open and in step with the server, and has not long been idle."""
        return time.monotonic() <= self._fresh_until and not self._is_broken()

    def prepare(self: Any) -> None:
        """Reconnects, unless the connection is open and answers a PING."""
        if self._is_broken() or not self._answers():
            self.disconnect()
            self.connect()
        elif time.monotonic() > self._login_until:
            self._log_in_again()

    def _log_in_again(self: Any) -> None:
        """Sends the credentials of now, before the server ends those of the connection."""
        self._login_until = time.monotonic() + RENEW_S
        login = self.credential_provider.get_credentials()
        self.send_packed(hiredis.pack_command(("AUTH", *login)))
        self._parser.read_response()

    def _answers(self: Any) -> bool:
        try:
            self._sock.sendall(PING)
            if not self._parser.can_read(min(CHECK_S, self.socket_timeout or CHECK_S)):
                return False
            self._parser.read_response()
        except redis.exceptions.ResponseError:
            # A server that refuses PING answers, too.
            return True
        except (redis.exceptions.RedisError, OSError):
            return False
        return True

    def _is_broken(self: Any) -> bool:
        """Whether it is closed, also by the server, or the server has sent data without a request."""
        sock = self._sock
        if sock is None:
            return True
        try:
            if not _HAS_POLL or hasattr(sock, "pending"):
                # A TLS socket may hold data that it has decrypted.
                return bool(self._parser.can_read(0))
            if sock is not self._polled:
                self._poll, self._polled = select.poll(), sock
                self._poll.register(sock, select.POLLIN)
            return bool(self._parser._reader.has_data() or self._poll.poll(0))  # noqa: SLF001
        except (redis.exceptions.RedisError, OSError):
            return True
