"""What a gateway answers in a second, beside an empty route; what its long polls and its loans cost."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from benchmarks.bench import Bench, Host, program
from benchmarks.measurements import percentile
from lisa_consumer import AsyncLender, ConsumerSettings
from lisa_producer import AsyncProducer, Message, ProducerSettings
from support.ports import reserved_port
from support.processes import Process

__all__ = ["http"]

_CONNECTIONS = 64
_TOPICS = 10
_BATCH = 100
_BASE = "/camellia/delayQueue/"


def http(bench: Bench) -> None:
    """One gateway: requests from 64 connections, pulls of 100, 3,000 long polls; loans as strings and in a hash."""
    with bench.host() as host, reserved_port() as port, reserved_port() as empty_port:
        host.manager()
        gateway = host.start(
            [program("lisa-gateway"), "run", "--listen", f"127.0.0.1:{port}"], says="gateway listens on"
        )
        empty = host.start([sys.executable, "-m", "benchmarks.programs.empty_route", str(empty_port)], says="listens")
        for _ in bench.laps(within_s=60):
            asyncio.run(_requests(bench, _Service(gateway, port), _Service(empty, empty_port)))
        asyncio.run(_polls(bench, port, gateway))
        for _ in bench.laps(within_s=30):
            asyncio.run(_loans(bench, host))
            _stores(bench, host)


class _Service(NamedTuple):
    """A process that answers requests, and its port."""

    process: Process
    port: int


class _Client:
    """One connection that is kept; it reads no more of an answer than it must."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: bytes) -> bytes:
        """Sends a request, and returns the body of its answer."""
        self._writer.write(request)
        return await self.receive()

    async def receive(self) -> bytes:
        """The body of an answer."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n", 1)[0])
        return await self._reader.readexactly(length)

    def begin(self, request: bytes) -> None:
        """Sends a request; `receive` gets its answer."""
        self._writer.write(request)

    async def close(self) -> None:
        """Closes the connection."""
        self._writer.close()
        await self._writer.wait_closed()


def _request(path: str, **parameters: object) -> bytes:
    return _post(path, "application/x-www-form-urlencoded", urlencode(parameters))


def _json(path: str, **fields: object) -> bytes:
    return _post(path, "application/json", json.dumps(fields))


def _post(path: str, content_type: str, body: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


async def _open(port: int, count: int) -> list[_Client]:
    return [_Client(*(await asyncio.open_connection("127.0.0.1", port))) for _ in range(count)]


async def _measure(
    bench: Bench,
    name: str,
    service: _Service,
    requests: Sequence[bytes],
    check: Callable[[bytes], bool],
    *,
    each: int = 1,
) -> None:
    """What is done in a second over all connections, and the service's processor time; each request does `each`."""
    clients = await _open(service.port, _CONNECTIONS)
    left = iter(requests)

    async def work(client: _Client) -> None:
        for request in left:
            body = await client.ask(request)
            if not check(body):
                raise ValueError(body)

    began, cpu_s = time.perf_counter(), service.process.cpu_s()
    await asyncio.gather(*map(work, clients))
    count = len(requests) * each
    bench.add(name, "1/s", count / (time.perf_counter() - began))
    bench.add(f"{name}: CPU of the process", "µs", (service.process.cpu_s() - cpu_s) / count * 1e6)
    for client in clients:
        await client.close()


def _is_done(body: bytes) -> bool:
    return body.startswith(b'{"code":200')


async def _requests(bench: Bench, gateway: _Service, empty: _Service) -> None:
    count = bench.size(10_000)
    stamp = time.time_ns()
    ids = [f"m{stamp}-{number}" for number in range(count)]
    body = "x" * 200
    request = _request("/", topic="bench", msg=body, delayMillis=0)
    await _measure(bench, "empty Starlette route", empty, [request] * count, _is_done)
    sends = [_request(_BASE + "sendMsg", topic="bench", msg=body, delayMillis=0, msgId=id) for id in ids]
    await _measure(bench, "sendMsg", gateway, sends, _is_done)
    pulled: list[str] = []

    def note(answer: bytes) -> bool:
        pulled.extend(message["msgId"] for message in json.loads(answer)["delayMsgList"])
        return True

    pull = _request(_BASE + "pullMsg", topic="bench", batch=_BATCH)
    await _measure(
        bench, f"pullMsg, batches of {_BATCH}: messages", gateway, [pull] * (count // _BATCH), note, each=_BATCH
    )
    acks = [_request(_BASE + "ackMsg", topic="bench", msgId=id, ack="true") for id in pulled]
    await _measure(bench, "ackMsg", gateway, acks, _is_done)
    await _batches(bench, gateway, [{"body": body} for _ in range(count)])


async def _batches(bench: Bench, gateway: _Service, messages: Sequence[dict[str, str]]) -> None:
    """Messages of the JSON API, in batches: sent, read and acked."""
    topic = "/v1/topics/bench-v1"
    batches = [messages[at : at + _BATCH] for at in range(0, len(messages), _BATCH)]
    receipts: list[list[str]] = []

    def take(answer: bytes) -> bool:
        receipts.append([delivery["receipt"] for delivery in json.loads(answer)["deliveries"]])
        return True

    def is_all(answer: bytes) -> bool:
        return b"problem" not in answer

    await _measure(
        bench,
        f"/v1, batches of {_BATCH}: sent",
        gateway,
        [_json(f"{topic}/batch", messages=each) for each in batches],
        is_all,
        each=_BATCH,
    )
    read = _json(f"{topic}/groups/http/read", limit=_BATCH)
    await _measure(bench, f"/v1, batches of {_BATCH}: read", gateway, [read] * len(batches), take, each=_BATCH)
    acks = [_json("/v1/ack", receipts=each) for each in receipts if each]
    await _measure(bench, f"/v1, batches of {_BATCH}: acked", gateway, acks, is_all, each=_BATCH)


async def _polls(bench: Bench, port: int, gateway: Process) -> None:
    """One send each 50 ms to one of ten topics, which 3,000 poll."""
    count = bench.size(3_000)
    before = _resident_kib(gateway)
    clients = await _open(port, count)
    polls = [
        _request(_BASE + "longPollingMsg", topic=f"poll-{number % _TOPICS}", longPollingTimeoutMillis=120_000)
        for number in range(count)
    ]
    for client, poll in zip(clients, polls, strict=True):
        client.begin(poll)
    await asyncio.sleep(bench.seconds(8))
    bench.add("long polls: memory each", "KiB", (_resident_kib(gateway) - before) / count)
    answered: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def wait(client: _Client, poll: bytes) -> None:
        while True:
            answer = await client.receive()
            answered.put_nowait((time.time() * 1000, answer))
            client.begin(poll)

    waiting = [asyncio.create_task(wait(client, poll)) for client, poll in zip(clients, polls, strict=True)]
    [sender] = await _open(port, 1)
    lags = []
    for number in range(bench.size(200)):
        await sender.ask(_request(_BASE + "sendMsg", topic=f"poll-{number % _TOPICS}", msg="x", delayMillis=200))
        if number >= _TOPICS // 2:
            lags.append(await _lag(answered))
        await asyncio.sleep(0.05)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for client in (*clients, sender):
        await client.close()
    bench.add("long polls: lag, p50", "ms", percentile(lags, 50))
    bench.add("long polls: lag, p99", "ms", percentile(lags, 99))


async def _lag(answered: "asyncio.Queue[tuple[float, bytes]]") -> float:
    at, answer = await answered.get()
    [message] = json.loads(answer)["delayMsgList"]
    return float(at - message["triggerTime"])


async def _loans(bench: Bench, host: Host) -> None:
    """Reads of 100 with leases, and acks, without loans and with them: the server's time, and commands."""
    count = bench.size(10_000)
    settings = ConsumerSettings(redis_url=host.url)
    async with (
        AsyncProducer(settings=ProducerSettings(redis_url=host.url)) as producer,
        AsyncLender("loans", settings=settings) as lender,
    ):
        await lender.read(1, topics="loans")
        for label, is_lent in (("without loans", False), ("with loans", True)):
            await producer.send_many("loans", [Message(body="x" * 200) for _ in range(count)])
            cpu_s, commands = host.cpu_s(), host.commands()
            done = 0
            while done < count:
                deliveries = await lender.read(_BATCH, wait=1, topics="loans")
                done += len(deliveries)
                if is_lent:
                    await lender.lend(*[(delivery, 60) for delivery in deliveries])
                    await asyncio.gather(*[lender.ack_lent("loans", delivery.id) for delivery in deliveries])
                else:
                    await lender.extend(*deliveries, lease=60)
                    await lender.ack(*deliveries)
            bench.add(f"delivery and ack {label}: server", "µs", (host.cpu_s() - cpu_s) / count * 1e6)
            bench.add(f"delivery and ack {label}: commands", "1", (host.commands() - commands) / count)


def _stores(bench: Bench, host: Host) -> None:
    """A loan as a string that expires, and in a hash: bytes, and the server's time to write, read and drop it."""
    count = bench.size(20_000)
    value = '["1795369723459-0",1795369723459,1,"host-12345-0123abcd"]'
    steps: dict[str, tuple[Callable[[str], tuple[object, ...]], ...]] = {
        "string": (
            lambda id: ("SET", f"lisa:{{loans}}:loan:http/{id}", value, "PX", 90_000),
            lambda id: ("GET", f"lisa:{{loans}}:loan:http/{id}"),
            lambda id: ("UNLINK", f"lisa:{{loans}}:loan:http/{id}"),
        ),
        "hash": (
            lambda id: ("HSET", "lisa:{loans}:loans", f"http/{id}", value),
            lambda id: ("HGET", "lisa:{loans}:loans", f"http/{id}"),
            lambda id: ("HDEL", "lisa:{loans}:loans", f"http/{id}"),
        ),
    }
    for label, commands in steps.items():
        cpu_s, memory = host.cpu_s(), host.memory()
        for number, make in enumerate(commands):
            pipeline = host.client.pipeline(transaction=False)
            for at in range(count):
                pipeline.execute_command(*make(f"{at:032x}"))  # type: ignore[no-untyped-call]
            pipeline.execute()
            if number == 0:
                bench.add(f"loan as a {label}: memory", "bytes", (host.memory() - memory) / count)
        bench.add(f"loan as a {label}: server", "µs", (host.cpu_s() - cpu_s) / count * 1e6)


def _resident_kib(process: Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0
