"""Everybody who may wait for a manager says so while none runs, with the command that starts one."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from lisa_common.client.connection import Connection
from lisa_common.errors import OutcomeUnknown
from lisa_common.model.keys import managers_key
from lisa_common.model.policy import Policy
from lisa_common.model.rights import RoleName
from lisa_common.protocol.call import command
from lisa_common.protocol.managers import find_absence, renew
from lisa_consumer import Delivery
from lisa_gateway.asgi import app, lifespan
from lisa_gateway.settings import GatewaySettings
from lisa_manager import Admin
from lisa_manager.admin.rights import ANY_TOPIC, rules
from lisa_producer import AsyncProducer, Producer, ProducerSettings
from support import Server, wait_until
from support.commands import Commands
from support.processes import Programs
from support.roles import is_old
from support.running import managed, new_worker, working
from support.waiting import wait_until_async

Declare = Callable[..., Policy]


@pytest.fixture
def line(prefix: str) -> str:
    """What is said."""
    return f"no manager runs, so messages that fall due wait; start one: lisa-manager run --prefix {prefix}"


@pytest.fixture
def programs(redis_url: str, prefix: str, tmp_path: Path) -> Iterator[Programs]:
    """Programs on the server of the run."""
    with closing(Programs(redis_url, prefix, tmp_path)) as started:
        yield started


def test_commands_say_it(commands: Commands, declare: Declare, line: str) -> None:
    """`doctor` finds a problem; `status` and `check` warn, and leave their documents as they are."""
    declare()
    ran = commands.manager("doctor")
    assert ran.code == 1
    assert line in ran.out.splitlines()
    assert line in commands.manager("doctor", "--json").document
    for words in (("status",), ("status", "--json"), ("check",), ("check", "--json")):
        ran = commands.manager(*words)
        assert (ran.code, ran.err) == (0, f"{line}\n")
        assert "all is well" not in ran.out
    assert commands.manager("status", "--json").document[0]["topic"] == "orders"


def test_a_fresh_installation_is_no_problem(own_server: Callable[..., Server]) -> None:
    """Before any topic is declared, `doctor` says what to start, and the exit code is 0."""
    server = own_server(appendonly="yes")
    ran = Commands(server.url, "lisa").manager("doctor")
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "no manager runs, so messages that fall due wait; start one: lisa-manager run"


async def test_it_is_over_as_a_manager_starts_and_begins_as_it_stops(
    redis_url: str, prefix: str, commands: Commands, line: str
) -> None:
    """At once, as managers say when they end; a producer that asks is told the same."""
    settings = ProducerSettings(redis_url=redis_url, prefix=prefix)
    async with AsyncProducer(settings=settings) as producer:
        with Producer(settings=settings) as blocking:
            assert (await producer.health(), blocking.health()) == (line, line)
            async with managed(redis_url, prefix):
                await wait_until_async(_quiet(producer), what="a manager that is seen")
                assert blocking.health() == ""
                assert (await asyncio.to_thread(commands.manager, "check")).err == ""
            assert (await producer.health(), blocking.health()) == (line, line)


def _quiet(producer: AsyncProducer) -> Callable[[], object]:
    async def is_quiet() -> bool:
        return await producer.health() == ""

    return is_quiet


def test_no_manager_is_missed_because_the_server_is_full(own_server: Callable[..., Server]) -> None:
    """It takes no signs of life then. The last ones stay, as long as any manager lives."""
    server = own_server()
    with Connection(server.url) as connection, server.client() as client:
        now = round(time.time() * 1000)
        connection.run(renew("lisa", "alive", now))
        client.config_set("maxmemory", "1mb")
        client.pexpire(managers_key("lisa"), 5_000)
        with pytest.raises(OutcomeUnknown, match="maxmemory"):
            connection.run(renew("lisa", "alive", now + 20_000))
        assert connection.run(find_absence("lisa")) == ""
        assert client.pttl(managers_key("lisa")) > 5_000


def test_a_killed_manager_is_missed_and_another_prefix_has_its_own(
    redis_url: str, prefix: str, commands: Commands
) -> None:
    """The sign of a killed manager expires by itself, also beside those that are renewed."""
    with Connection(redis_url) as connection:
        now = round(time.time() * 1000)
        connection.run(renew(prefix, "killed", now - 60_000))
        connection.run(renew(prefix, "alive", now))
        assert connection.call(command("ZRANGE", managers_key(prefix), 0, -1)) == [b"alive"]
        assert 0 < connection.call(command("PTTL", managers_key(prefix))) <= 15_000
        assert commands.manager("status").err == ""
        assert Commands(redis_url, f"{prefix}-2").manager("status").err


def test_an_unreachable_server_is_another_problem(own_server: Callable[..., Server]) -> None:
    """A producer that asks hears of the server."""
    server = own_server()
    with Producer(settings=ProducerSettings(redis_url=server.url, patience_s=0)) as producer:
        assert producer.health().startswith("no manager runs")
        server.kill()
        assert "no manager" not in producer.health() != ""


def test_a_user_who_may_not_know_says_nothing(own_server: Callable[..., Server]) -> None:
    """Rules of an older release do not have the right; that is no missing manager."""
    server = own_server()
    with Connection(server.url) as connection:
        made = rules(RoleName.PRODUCER, "lisa", [ANY_TOPIC], before_7_2=is_old(connection))
        older = [rule for rule in made if ":managers" not in rule]
        connection.call(command("ACL", "SETUSER", "older", "on", ">pw", *older))
    url = server.url.replace("://", "://older:pw@")
    with Producer(settings=ProducerSettings(redis_url=url)) as producer:
        producer.send("orders", "x")
        assert producer.health() == ""
    with Admin(server.url) as admin:
        assert admin.missing_manager() != ""


async def test_a_worker_logs_it_once_and_once_when_it_is_over(
    redis_url: str, prefix: str, line: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays ready, and says so to probes."""
    monkeypatch.setattr("lisa_common.observing.manager_watch._LOOK_S", 0.02)
    caplog.set_level(logging.INFO)
    worker = new_worker(redis_url, prefix)

    @worker.on("orders")
    async def handle(delivery: Delivery) -> None: ...

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if "manager r" in record.getMessage()]

    async with working(worker):
        await wait_until_async(worker.health.find_remark, what="a missing manager")
        await wait_until_async(lambda: not worker.health.find_problem(), what="readiness")
        assert worker.health.find_remark() == line
        async with managed(redis_url, prefix):
            await wait_until_async(lambda: not worker.health.find_remark(), what="a manager")
        await wait_until_async(worker.health.find_remark, what="a missing manager")
    assert said() == [line, "a manager runs again", line]


async def test_a_gateway_stays_ready_and_says_so(
    redis_url: str, prefix: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Balancers keep sending to it, as another gateway would not do better; people read the body."""
    monkeypatch.setattr("lisa_common.observing.manager_watch._LOOK_S", 0.02)
    application = app(GatewaySettings(redis_url=redis_url, prefix=prefix))
    async with (
        lifespan(application),
        httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://gateway") as client,
    ):
        await wait_until_async(lambda: application.state.gateway.managers.absence, what="a missing manager")
        assert (await client.get("/livez")).text == "ok\n"

        async def is_ready() -> bool:
            return (await client.get("/readyz")).status_code == 200

        await wait_until_async(is_ready, 20)
        assert (await client.get("/readyz")).text == f"ok\n{line}\n"
        assert (await client.get("/health/ready")).json() == {"status": "up", "reason": line}


@pytest.mark.slow
def test_a_worker_with_a_manager_inside(programs: Programs, commands: Commands) -> None:
    """A delayed message is handled, though nobody started a manager; both end together."""
    worker = programs.worker("--with-manager")
    wait_until(lambda: not commands.manager("status").err, 20, what="the manager inside")
    assert commands.producer("send", "orders", "{}", "--id", "a", "--delay", "500ms").code == 0
    wait_until(lambda: programs.journal.ended()["a"], 20, what="the message is handled")
    assert worker.stop() == 0
    assert commands.manager("status").err


@pytest.mark.slow
def test_a_manager_inside_beside_another(programs: Programs, commands: Commands) -> None:
    """Each message is handled once, and the other manager goes on after the worker's end."""
    programs.manager()
    first, second = programs.worker("--with-manager"), programs.worker("--with-manager")
    ids = [f"m{number}" for number in range(20)]
    for id in ids:
        assert commands.producer("send", "orders", "{}", "--id", id, "--delay", "1s").code == 0
    wait_until(lambda: programs.journal.ended() == dict.fromkeys(ids, 1), 20, what="the messages are handled")
    assert (first.stop(), second.stop()) == (0, 0)
    assert commands.manager("status").err == ""
    assert commands.manager("check").code == 0


@pytest.mark.slow
def test_a_watch_says_it_until_a_manager_starts(programs: Programs, commands: Commands, line: str) -> None:
    """In each look of a pipe."""
    assert commands.manager("topic", "create", "orders").code == 0
    watch = programs.start("lisa-manager", "status", "--watch", "0.2")
    watch.wait_for(line)
    programs.manager()

    def looks_are_quiet() -> bool:
        return watch.log.rpartition(line)[2].count("\norders ") > 3

    wait_until(looks_are_quiet, 20, what="looks without the line")
