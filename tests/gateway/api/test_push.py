"""`lisa-gateway push` as a real process, to a real receiver."""

import asyncio
import base64
import hashlib
import hmac
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from lisa_consumer import Worker
from lisa_gateway.push import PushSettings, Target
from lisa_gateway.push.pusher import push
from support.commands import Commands
from support.gateways import Gateways, wait_for_state
from support.metrics import metrics_url, probe, scrape
from support.waiting import wait_until

KEY = bytes(range(32))
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
OLD_KEY = b"o" * 24


@dataclass
class Receiver:
    """A server that answers as the test says."""

    answer: Callable[["Request"], tuple[int, dict[str, str]]] = lambda _: (200, {})
    requests: list["Request"] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""


@dataclass(frozen=True)
class Request:
    """A request that arrived."""

    headers: dict[str, str]
    body: bytes
    at: float


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of webhooks."""
    own = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = Request({name.lower(): value for name, value in self.headers.items()}, body, time.time())
            with own.lock:
                own.requests.append(request)
                own.at_once += 1
                own.most_at_once = max(own.most_at_once, own.at_once)
            status, headers = own.answer(request)
            with own.lock:
                own.at_once -= 1
            self.send_response(status)
            for name, value in ({"content-length": "0"} | headers).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 100

        def handle_error(self, *_: Any) -> None:
            pass  # a pusher that is stopped breaks off

    server = Quiet(("127.0.0.1", 0), Handler)
    own.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield own
    server.shutdown()
    thread.join()
    server.server_close()


class Pushing:
    """A pusher in a thread of its own, as `lisa-gateway push` runs it."""

    def __init__(self, settings: PushSettings) -> None:
        self._settings = settings
        self._worker: Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        self._thread.start()
        wait_until(lambda: self._worker is not None, 30, what="the pusher starts")

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()

        async def take(worker: Worker) -> bool:
            self._worker = worker
            return True

        await push(self._settings, take)

    def stop(self) -> None:
        """Drains, as on SIGTERM."""
        if self._loop is not None and self._worker is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.join(40)
        assert not self._thread.is_alive()


@pytest.fixture
def pushing(gateways: Gateways) -> Iterator[Callable[..., Pushing]]:
    """Pushes a topic to a URL until the test ends."""
    started: list[Pushing] = []

    def start(topic: str, url: str, *, reject_4xx: bool = False, concurrency: int = 16) -> Pushing:
        target = Target(topic=topic, url=url, reject_4xx=reject_4xx, concurrency=concurrency)
        settings = PushSettings(
            redis_url=gateways.url, prefix=gateways.prefix, secret=SecretStr(SECRET), targets=(target,)
        )
        started.append(Pushing(settings))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def _secret(key: bytes) -> str:
    return f"whsec_{base64.b64encode(key).decode()}"


def _signature(request: Request, key: bytes) -> str:
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    return f"v1,{base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()}"


@pytest.mark.slow
def test_messages_are_posted_when_due_and_signed(
    http: httpx.Client, gateways: Gateways, topic: str, receiver: Receiver
) -> None:
    """The body is that of the message, byte for byte; the signatures are those of the standard; 2xx acks."""
    pusher = gateways.start(
        *("lisa-gateway", "push", topic, receiver.url), secret=f"{SECRET} {_secret(OLD_KEY)}",
        metrics="127.0.0.1:0", log_level="info",
    )  # fmt: skip
    body = bytes(range(256))
    kind = {"content-type": "image/png"}
    sent = http.put(
        f"/v1/topics/{topic}/messages/größe", content=body, headers=kind, params={"delay": 0.3, "header": "käse=ja"}
    ).json()
    wait_until(lambda: receiver.requests, 60, what="a request")
    [request] = receiver.requests
    assert request.body == body
    assert request.at * 1000 >= sent["due_ms"]
    assert request.headers["content-type"] == "image/png"
    assert request.headers["webhook-id"] == "gr%C3%B6%C3%9Fe"
    assert abs(int(request.headers["webhook-timestamp"]) - request.at) < 5
    signatures = request.headers["webhook-signature"].split(" ")
    assert signatures == [_signature(request, KEY), _signature(request, OLD_KEY)]
    assert request.headers["lisa-attempt"] == "1"
    assert request.headers["lisa-headers"] == '{"k\\u00e4se":"ja","content-type":"image/png"}'
    wait_for_state(http, topic, "größe", "finished")
    exported = scrape(metrics_url(pusher))
    assert exported.sum("lisa_push_requests_total", topic=topic, status="200") == 1
    assert exported.sum("lisa_push_seconds_count", topic=topic) == 1
    assert exported.sum("lisa_settled_total", outcome="acked") == 1
    assert probe(metrics_url(pusher), "/readyz")[0] == 200
    assert pusher.stop() == 0


def test_retry_after_is_obeyed_and_other_4xx_may_be_garbage(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receiver: Receiver
) -> None:
    """503 with Retry-After comes again that much later, 400 is garbage with the answer as its error, if so chosen."""
    seen: Counter[str] = Counter()

    def answer(request: Request) -> tuple[int, dict[str, str]]:
        id = request.headers["webhook-id"]
        seen[id] += 1
        if id == "busy" and seen[id] == 1:
            return 503, {"retry-after": "2"}
        if id == "limited" and seen[id] == 1:
            return 429, {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}
        return (400, {}) if id == "bad" else (204, {})

    receiver.answer = answer
    pushing(topic, receiver.url, reject_4xx=True)
    for id in ("busy", "limited", "bad"):
        http.post(f"/v1/topics/{topic}/messages", json={"id": id, "body": id}).raise_for_status()
    wait_for_state(http, topic, "bad", "garbage")
    wait_for_state(http, topic, "limited", "finished")
    wait_for_state(http, topic, "busy", "finished")
    first, second = (request for request in receiver.requests if request.headers["webhook-id"] == "busy")
    assert second.at - first.at >= 2
    assert (first.headers["lisa-attempt"], second.headers["lisa-attempt"]) == ("1", "2")
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    [letter] = http.get(f"/v1/topics/{topic}/garbage").json()["letters"]
    assert (letter["id"], letter["reason"], letter["attempts"]) == ("bad", "rejected", 1)
    assert letter["error"].startswith("status 400")
    # A compressed answer would not be readable there.
    assert {request.headers["accept-encoding"] for request in receiver.requests} == {"identity"}


def test_a_receiver_that_is_away_is_tried_again(
    http: httpx.Client,
    pushing: Callable[..., Pushing],
    topic: str,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No connection, or a redirect, is a failed attempt: the topic's backoff decides, and the error says why."""
    fields = {"backoff_base_ms": 60_000, "backoff_jitter": 0}
    http.put(f"/v1/topics/{topic}", json=fields).raise_for_status()
    pushing(topic, receiver.url)
    receiver.answer = lambda _: (302, {"location": receiver.url})
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": 1}).raise_for_status()
    found = wait_for_state(http, topic, "m", "retry")
    assert found["copies"][0]["error"].startswith("status 302")
    assert len(receiver.requests) == 1
    pushing(f"{topic}-away", "http://127.0.0.1:9/")
    http.post(f"/v1/topics/{topic}-away/messages", json={"id": "m", "body": 1}).raise_for_status()
    found = wait_for_state(http, f"{topic}-away", "m", "retry")
    assert found["copies"][0]["error"].startswith("no answer: ConnectError")
    assert "fails: no answer" in caplog.text


def test_requests_at_once_are_bounded_and_end_before_a_stop(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receiver: Receiver
) -> None:
    """Never more than the concurrency; what runs at a stop ends, and nothing is posted twice."""
    gate = threading.Event()
    receiver.answer = lambda _: (200, {}) if gate.wait(20) else (500, {})
    messages = [{"id": f"m{number}", "body": number} for number in range(40)]
    http.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).raise_for_status()
    pusher = pushing(topic, receiver.url, concurrency=5)
    wait_until(lambda: receiver.at_once == 5, 10, what="five requests at once")
    threading.Timer(0.5, gate.set).start()
    pusher.stop()
    pushing(topic, receiver.url, concurrency=5)
    wait_until(lambda: http.get(f"/v1/topics/{topic}/sizes").json()["stored"] == 0, 20, what="all are pushed")
    assert receiver.most_at_once == 5
    assert Counter(request.headers["webhook-id"] for request in receiver.requests) == {f"m{n}": 1 for n in range(40)}


@pytest.mark.parametrize(
    ("arguments", "settings", "line"),
    [
        ((), {}, "targets must be at least one"),
        (("orders",), {}, "url must be given with a topic; got None"),
        (("orders", "ftp://host/"), {}, "url must be an http:// or https:// URL; got 'ftp://host/'"),
        (("orders", "http://host/\nx"), {}, "url must be a valid URL (Invalid non-printable ASCII character in URL"),
        (("orders", "http://☃.example/"), {}, "url must be a valid URL (Invalid IDNA hostname: '☃.example'); got "),
        (("orders", "http://exa mple/"), {}, "url must be a URL with a valid host; got 'http://exa mple/'"),
        (("a b", "http://host/"), {}, "topic must be 1 to 128 letters"),
        (("orders", "http://host/"), {"LISA_SECRET": "whsec_c2hvcnQ="}, "setting secret must be whsec_ and 24 to 64"),
        (("--targets", '[{"topic": "a"}]'), {}, "setting targets.0.url must be given"),
        (("--targets", "["), {}, "setting targets must be a JSON list"),
        (("--reject-4xx",), {}, "--reject-4xx must be given only with a topic"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    settings: dict[str, str],
    line: str,
) -> None:
    """No secret is shown."""
    ran = Commands("redis://127.0.0.1:9", "none").gateway("push", *arguments, **settings)
    said = ran.err
    assert ran.code == 2
    assert line in said
    assert "c2hvcnQ" not in said
    assert said.count("\n") == 1
