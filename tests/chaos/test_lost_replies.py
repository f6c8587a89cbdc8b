"""A request is made again whose reply was lost: it must not reach a later message of the same id."""

from collections.abc import Callable
from contextlib import closing, suppress
from threading import Thread

import pytest
from pydantic import SecretStr

from chaos.network import Network
from lisa_common.errors import OutcomeUnknown
from lisa_producer import Producer, ProducerSettings
from support.proxy import Proxy
from support.server import Server
from support.waiting import wait_until

_SLOW_S = 0.1
"""How long each piece is on its way: others have some of these for what they do between two tries."""


def _cancel(producer: Producer, id: str) -> object:
    return producer.cancel("orders", id)


def _reschedule(producer: Producer, id: str) -> object:
    return producer.reschedule("orders", id, delay=60)


@pytest.mark.parametrize("ask", [_cancel, _reschedule], ids=lambda ask: ask.__name__.strip("_"))
def test_what_is_asked_again_leaves_a_later_message_alone(
    own_server: Callable[..., Server], ask: Callable[[Producer, str], object]
) -> None:
    """The first try is carried out, and its reply is lost. Before the second one the id goes to another message."""
    server = own_server()
    with closing(Network(server.port, "caller").start()) as network:
        proxy = network.proxies["caller"]
        with Producer(settings=_settings(proxy.url)) as caller, Producer(settings=_settings(server.url)) as other:
            other.send("orders", b"first", id="m", delay=120)
            # Connected, and its scripts loaded, before it matters.
            ask(caller, "nobody")

            def take_the_id() -> None:
                wait_until(lambda: proxy.lost)
                other.cancel("orders", "m")
                other.send("orders", b"second", id="m", delay=7_200)

            network.tell("caller", _slow_and_deaf)
            thread = Thread(target=take_the_id)
            thread.start()
            with suppress(OutcomeUnknown):
                ask(caller, "m")
            thread.join()
            found = other.find("orders", "m")
    assert found is not None, "the second message was cancelled"
    assert found.record is not None
    assert found.record.body == b"second"
    assert found.record.due_ms - found.record.sent_ms == 7_200_000, "the second message was rescheduled"


def _settings(url: str) -> ProducerSettings:
    return ProducerSettings(redis_url=SecretStr(url), patience_s=5, timeout_s=5)


def _slow_and_deaf(proxy: Proxy) -> None:
    proxy.delay_s = _SLOW_S
    proxy.cut()
