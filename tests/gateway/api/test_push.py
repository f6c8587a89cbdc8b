"""`lisa-gateway push` as a real process, to a real receiver."""

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

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
    write_body: Callable[[BinaryIO], None] | None = None
    """Writes the body of each answer; the connection then ends."""
    requests: list["Request"] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""


@dataclass(frozen=True)
class Request:
    """A request that arrived."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float


@pytest.fixture
def receivers() -> Iterator[Callable[..., Receiver]]:
    """Starts receivers of webhooks, which also take what is meant for others, as a proxy does."""
    with ExitStack() as running:
        yield lambda kind=_Handler: running.enter_context(_receiving(kind))


@pytest.fixture
def receiver(receivers: Callable[..., Receiver]) -> Receiver:
    """A receiver of webhooks."""
    return receivers()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def do_POST(self) -> None:
        own = self.server.own
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path, headers, body, time.time())
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
        if own.write_body:
            own.write_body(self.wfile)
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


class _Socks(_Handler):
    """A SOCKS proxy that answers in place of those whom it is asked for. Source: RFC 1928."""

    def handle(self) -> None:
        methods = self.rfile.read(2)[1]
        self.rfile.read(methods)
        self.wfile.write(b"\5\0")
        self.rfile.read(4)
        self.rfile.read(self.rfile.read(1)[0] + 2)
        self.wfile.write(b"\5\0\0\1" + bytes(6))
        super().handle()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100
    own: Receiver

    def handle_error(self, *_: Any) -> None:
        pass  # a pusher that is stopped breaks off


@contextmanager
def _receiving(kind: type[_Handler]) -> Iterator[Receiver]:
    server = _Server(("127.0.0.1", 0), kind)
    server.own = Receiver(url=f"http://127.0.0.1:{server.server_address[1]}/hook")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.own
    finally:
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
    """Pushes to targets until the test ends."""
    started: list[Pushing] = []

    def start(*targets: Target) -> Pushing:
        settings = PushSettings(
            redis_url=gateways.url, prefix=gateways.prefix, secret=SecretStr(SECRET), targets=targets
        )
        started.append(Pushing(settings))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def _to(topic: str, url: str, **fields: Any) -> Target:
    return Target(topic=topic, url=SecretStr(url), **fields)


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
    url = metrics_url(pusher)
    # Others may see the ack before the pusher has counted it.
    wait_until(lambda: scrape(url).sum("lisa_settled_total", outcome="acked") == 1, what="the ack is counted")
    wait_until(lambda: probe(url, "/readyz")[0] == 200, 20, what="it is ready")
    assert pusher.stop() == 0


def test_retry_after_is_obeyed_and_other_4xx_may_be_garbage(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receiver: Receiver
) -> None:
    """After 429 or 503 with Retry-After nothing is posted for so long, and no attempt is spent. 400 may be garbage."""
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
    pushing(_to(topic, receiver.url, reject_4xx=True))
    for id in ("busy", "limited", "bad"):
        http.post(f"/v1/topics/{topic}/messages", json={"id": id, "body": id}).raise_for_status()
    wait_for_state(http, topic, "limited", "finished")
    wait_for_state(http, topic, "bad", "garbage")
    wait_for_state(http, topic, "busy", "finished")
    first, second = (request for request in receiver.requests if request.headers["webhook-id"] == "busy")
    assert second.at - first.at >= 2
    assert (first.headers["lisa-attempt"], second.headers["lisa-attempt"]) == ("1", "1")
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
    pushing(_to(topic, receiver.url))
    receiver.answer = lambda _: (302, {"location": receiver.url})
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": 1}).raise_for_status()
    found = wait_for_state(http, topic, "m", "retry")
    assert found["copies"][0]["error"].startswith("status 302")
    assert len(receiver.requests) == 1
    pushing(_to(f"{topic}-away", "http://127.0.0.1:9/"))
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
    pusher = pushing(_to(topic, receiver.url, concurrency=5))
    wait_until(lambda: receiver.at_once == 5, what="five requests at once")
    threading.Timer(0.5, gate.set).start()
    pusher.stop()
    pushing(_to(topic, receiver.url, concurrency=5))
    wait_until(lambda: http.get(f"/v1/topics/{topic}/sizes").json()["stored"] == 0, 20, what="all are pushed")
    assert receiver.most_at_once == 5
    assert Counter(request.headers["webhook-id"] for request in receiver.requests) == {f"m{n}": 1 for n in range(40)}


def test_a_pause_holds_back_all_messages_and_spends_no_attempt(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receiver: Receiver
) -> None:
    """While a receiver asks for pauses, one request goes first after each. Others join once that was answered."""
    http.put(f"/v1/topics/{topic}", json={"max_retries": 0}).raise_for_status()
    works = threading.Event()
    receiver.answer = lambda _: (204, {}) if works.is_set() else (503, {"retry-after": "1"})
    messages = [{"id": f"m{number}", "body": number} for number in range(20)]
    http.post(f"/v1/topics/{topic}/batch", json={"messages": messages}).raise_for_status()
    pushing(_to(topic, receiver.url, concurrency=4))
    wait_until(lambda: len(_waves(receiver)) == 4, 30, what="requests after three pauses")
    works.set()
    wait_until(lambda: http.get(f"/v1/topics/{topic}/sizes").json()["stored"] == 0, 20, what="all are pushed")
    first, *others = _waves(receiver)[:4]
    assert first <= 4
    assert others[:2] == [1, 1]
    assert {request.headers["lisa-attempt"] for request in receiver.requests} == {"1"}


def _waves(receiver: Receiver) -> list[int]:
    """How many requests came together, each time after at least most of a second without any."""
    waves: list[int] = []
    before = 0.0
    for at in [request.at for request in receiver.requests]:
        if at - before > 0.8:
            waves.append(0)
        waves[-1] += 1
        before = at
    return waves


def test_a_pause_concerns_one_target_and_no_other_group(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receiver: Receiver
) -> None:
    """Other targets and groups go on, and what waits for the receiver expires as ever."""
    receiver.answer = lambda request: (429, {"retry-after": "600"}) if request.path == "/hook" else (204, {})
    http.put(f"/v1/topics/{topic}", json={}).raise_for_status()
    for group in ("others", "push"):
        http.put(f"/v1/topics/{topic}/groups/{group}").raise_for_status()
    pushing(_to(topic, receiver.url), _to(f"{topic}-other", f"{receiver.url}/other"))
    http.post(f"/v1/topics/{topic}/messages", json={"id": "first", "body": 1}).raise_for_status()
    wait_until(lambda: receiver.requests, 20, what="a request")
    http.post(f"/v1/topics/{topic}/messages", json={"id": "late", "body": 1, "ttl": 1}).raise_for_status()
    http.post(f"/v1/topics/{topic}-other/messages", json={"id": "m", "body": 1}).raise_for_status()
    wait_for_state(http, f"{topic}-other", "m", "finished")
    read = http.post(f"/v1/topics/{topic}/groups/others/read", json={"limit": 10, "wait": 5}).json()
    assert "first" in {delivery["id"] for delivery in read["deliveries"]}
    wait_until(lambda: _copy(http, topic, "late") == ("expired", 0), 20, what="the message expires without an attempt")
    assert [request.path for request in receiver.requests] == ["/hook", "/hook/other"]


def _copy(http: httpx.Client, topic: str, id: str) -> tuple[str, int]:
    """The state of the pushers' copy of a message, and its attempts."""
    copies = http.get(f"/v1/topics/{topic}/messages/{id}").json()["copies"]
    return next((copy["state"], copy["attempts"]) for copy in copies if copy["group"] == "push")


@pytest.mark.parametrize(
    ("retry_after", "attempt"),
    [
        ("0", "1"),
        ("Thu, 01 Jan 1970 00:00:00 GMT", "1"),
        ("-1", "2"),
        ("soon", "2"),
        ("1, 2", "2"),
        ("Thu, 01 Jan 99999999999999999999 00:00:00 GMT", "2"),
    ],
)
def test_no_answer_asks_for_a_burst(
    http: httpx.Client,
    pushing: Callable[..., Pushing],
    topic: str,
    receiver: Receiver,
    *,
    retry_after: str,
    attempt: str,
) -> None:
    """A pause lasts a second at least; without one that can be read, the topic's backoff decides."""
    http.put(f"/v1/topics/{topic}", json={"backoff_base_ms": 1_000, "backoff_jitter": 0}).raise_for_status()
    receiver.answer = lambda _: (204, {}) if len(receiver.requests) > 1 else (503, {"retry-after": retry_after})
    pushing(_to(topic, receiver.url))
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": 1}).raise_for_status()
    wait_for_state(http, topic, "m", "finished")
    first, second = receiver.requests
    assert second.at - first.at >= 0.99
    assert second.headers["lisa-attempt"] == attempt


@pytest.mark.parametrize(
    ("headers", "body", "ends"),
    [
        ({"content-length": "100"}, b"short", True),
        ({"transfer-encoding": "chunked"}, b"no chunk", True),
        ({}, b"", False),
    ],
)
def test_the_status_decides_whatever_becomes_of_the_body(
    http: httpx.Client,
    pushing: Callable[..., Pushing],
    topic: str,
    receiver: Receiver,
    *,
    headers: dict[str, str],
    body: bytes,
    ends: bool,
) -> None:
    """A body that is cut, broken or slow changes nothing: 200 acks, 400 rejects."""
    over = threading.Event()

    def write(out: BinaryIO) -> None:
        out.write(body)
        out.flush()
        assert ends or over.wait(60)

    receiver.write_body = write
    receiver.answer = lambda request: (
        200 if request.headers["webhook-id"] == "good" else 400,
        {"content-length": "100"} | headers,
    )
    pushing(_to(topic, receiver.url, reject_4xx=True))
    for id in ("good", "bad"):
        http.post(f"/v1/topics/{topic}/messages", json={"id": id, "body": 1}).raise_for_status()
    wait_for_state(http, topic, "bad", "garbage")
    wait_for_state(http, topic, "good", "finished")
    over.set()
    assert len(receiver.requests) == 2


def test_cookies_are_not_kept(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receiver: Receiver
) -> None:
    """A cookie of one receiver would reach the others of its host."""
    receiver.answer = lambda request: (204, {"set-cookie": f"of{request.path[-1]}=x; Path=/"})
    topics = [f"{topic}-{number}" for number in range(2)]
    pushing(*(_to(each, f"{receiver.url}{each[-1]}") for each in topics))
    for id in ("a", "b"):
        for each in topics:
            http.post(f"/v1/topics/{each}/messages", json={"id": id, "body": 1}).raise_for_status()
            wait_for_state(http, each, id, "finished")
    assert [request.headers.get("cookie") for request in receiver.requests] == [None] * 4


class _Loud(_Handler):
    """Sends one more answer behind those to a path that ends in 0, in the same packet."""

    wbufsize = -1

    def do_POST(self) -> None:
        super().do_POST()
        if self.path.endswith("0"):
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def test_no_answer_is_taken_for_that_of_another_target(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receivers: Callable[..., Receiver]
) -> None:
    """Surplus bytes of one receiver ack no messages of others on its host. A content type loses its outer spaces."""
    receiver = receivers(_Loud)
    receiver.answer = lambda request: (200 if request.path.endswith("0") else 500, {})
    loud, quiet = f"{topic}-0", f"{topic}-1"
    pushing(*(_to(each, f"{receiver.url}{each[-1]}") for each in (loud, quiet)))
    http.post(f"/v1/topics/{loud}/messages", json={"id": "a", "body": 1}).raise_for_status()
    wait_for_state(http, loud, "a", "finished")
    spaced = {"id": "b", "body": 1, "max_retries": 0, "headers": {"content-type": " text/plain "}}
    http.post(f"/v1/topics/{quiet}/messages", json=spaced).raise_for_status()
    wait_for_state(http, quiet, "b", "garbage")
    assert receiver.requests[-1].headers["content-type"] == "text/plain"


@pytest.mark.slow
def test_secrets_of_a_target_are_sent_and_never_shown(
    http: httpx.Client, gateways: Gateways, topic: str, receivers: Callable[..., Receiver], tmp_path: Path
) -> None:
    """Headers as text and from files, users of URLs; logs, errors and records show none of them, nor the path."""
    keys, basic = receivers(), receivers()
    file = tmp_path / "key"
    file.write_text("key-of-file\n")
    keys.write_body = lambda out: out.write(b"Cannot POST /hook/path-secret with key-of-file")
    keys.answer = lambda _: (400, {"content-length": "46", "location": "/path-secret", "set-cookie": "a=cookie-secret"})
    targets = [
        {
            "topic": topic,
            "url": f"{keys.url}/path-secret?token=query-secret",
            "headers": {"Authorization": "Bearer text-secret", "x-key": {"file": str(file)}},
            "reject_4xx": True,
        },
        {"topic": f"{topic}-basic", "url": basic.url.replace("//", "//me:pass%20secret@")},
    ]
    pusher = gateways.start("lisa-gateway", "push", targets=json.dumps(targets), log_level="debug")
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": 1}).raise_for_status()
    http.post(f"/v1/topics/{topic}-basic/messages", json={"id": "m", "body": 1}).raise_for_status()
    wait_for_state(http, topic, "m", "garbage")
    wait_for_state(http, f"{topic}-basic", "m", "finished")
    [request] = keys.requests
    assert request.path == "/hook/path-secret?token=query-secret"
    assert (request.headers["authorization"], request.headers["x-key"]) == ("Bearer text-secret", "key-of-file")
    assert basic.requests[0].headers["authorization"] == f"Basic {base64.b64encode(b'me:pass secret').decode()}"
    [letter] = http.get(f"/v1/topics/{topic}/garbage").json()["letters"]
    assert letter["error"] == "status 400: Cannot POST … with …"
    assert pusher.stop() == 0
    shown = pusher.log + repr(PushSettings(targets=targets)) + repr(Target(**targets[0]))
    for secret in ("secret", "key-of-file", base64.b64encode(b"me:pass secret").decode()):
        assert secret not in shown


@pytest.mark.parametrize("status", [307, 308])
def test_redirects_are_followed_where_a_target_allows_it(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receivers: Callable[..., Receiver], status: int
) -> None:
    """With body and signature; another origin does not get the headers of the target, and neither does its way back."""
    first, other = receivers(), receivers()
    ways = {"/hook": "/moved", "/moved": other.url, "/back": ""}
    first.answer = lambda request: (status, {"location": ways[request.path]}) if ways[request.path] else (204, {})
    other.answer = lambda _: (status, {"location": first.url.replace("hook", "back")})
    url = first.url.replace("//", "//me:secret@")
    pushing(_to(topic, url, headers={"x-key": "secret"}, follow_redirects=True))
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": "text"}).raise_for_status()
    wait_for_state(http, topic, "m", "finished")
    requests = [*first.requests[:2], *other.requests, first.requests[2]]
    assert [request.path for request in requests] == ["/hook", "/moved", "/hook", "/back"]
    assert [request.headers.get("x-key") for request in requests] == ["secret", "secret", None, None]
    assert [bool(request.headers.get("authorization")) for request in requests] == [True, True, False, False]
    assert {request.body for request in requests} == {b"text"}
    for request in requests:
        assert request.headers["webhook-signature"] == _signature(request, KEY)


@pytest.mark.parametrize(
    ("follows", "status", "location", "requests"),
    [
        (False, 307, "/hook", 1),
        (True, 302, "/hook", 1),
        (True, 303, "/hook", 1),
        (True, 307, "/hook", 6),
        (True, 307, "ftp://127.0.0.1/", 1),
        (True, 307, "http://[", 1),
        (True, 307, "http://xn--a/", 1),
    ],
)
def test_redirects_that_lead_nowhere_are_failed_attempts(
    http: httpx.Client,
    pushing: Callable[..., Pushing],
    topic: str,
    receiver: Receiver,
    *,
    status: int,
    location: str,
    requests: int,
    follows: bool,
) -> None:
    """Others than 307 and 308, more than five, and those to what is not HTTP."""
    http.put(f"/v1/topics/{topic}", json={"backoff_base_ms": 60_000, "backoff_jitter": 0}).raise_for_status()
    receiver.answer = lambda _: (status, {"location": location})
    pushing(_to(topic, receiver.url, follow_redirects=follows))
    http.post(f"/v1/topics/{topic}/messages", json={"id": "m", "body": 1}).raise_for_status()
    [copy] = wait_for_state(http, topic, "m", "retry")["copies"]
    assert copy["error"].startswith(("status 30", "no answer: "))
    assert len(receiver.requests) == requests


def test_a_message_may_name_a_path_below_the_url(
    http: httpx.Client, pushing: Callable[..., Pushing], topic: str, receiver: Receiver
) -> None:
    """Where the target allows it; what could lead elsewhere becomes garbage, and is not posted."""
    pushing(_to(topic, f"{receiver.url}/?key=1", paths=True), _to(f"{topic}-other", receiver.url))
    good = {"a/b": "/hook/a/b?key=1", "/a b/%C3%BC/ü": "/hook/a%20b/%C3%BC/%C3%BC?key=1", "@h:1": "/hook/@h:1?key=1"}
    bad = [
        *("..", "a/../b", "%2e%2e/b", "a/.%2E", "//host/", "http://host/", "a\\b", "a%5Cb", "a%2fb", "a?b", "a#b"),
        *("%252e%252e", "..;/a", "..%20/a", "a%00", "a\nb", "%C0%AE%C0%AE", "50%", "", "/"),
    ]
    for number, path in enumerate([*good, *bad]):
        message = {"id": f"m{number}", "body": 1, "headers": {"lisa-path": path}}
        http.post(f"/v1/topics/{topic}/messages", json=message).raise_for_status()
    garbage = f"/v1/topics/{topic}/garbage"
    wait_until(lambda: len(http.get(garbage).json()["letters"]) == len(bad), 20, what="the others are garbage")
    wait_until(lambda: len(receiver.requests) == len(good), 20, what="all are posted")
    assert {request.path for request in receiver.requests} == {*good.values()}
    letters = http.get(garbage).json()["letters"]
    assert all(each["error"].startswith("header lisa-path must be segments with / between") for each in letters)
    http.post(f"/v1/topics/{topic}-other/messages", json={"id": "m", "body": 1, "headers": {"lisa-path": ".."}})
    wait_for_state(http, f"{topic}-other", "m", "finished")
    assert receiver.requests[-1].path == "/hook"


@pytest.mark.parametrize(
    ("variable", "scheme", "kind", "path"),
    [
        ("HTTP_PROXY", "http", _Handler, "http://orders.invalid/hook"),
        ("ALL_PROXY", "http", _Handler, "http://orders.invalid/hook"),
        ("ALL_PROXY", "socks5", _Socks, "/hook"),
        ("http_proxy", "socks5h", _Socks, "/hook"),
    ],
)
def test_proxies_of_the_environment_are_used(
    http: httpx.Client,
    pushing: Callable[..., Pushing],
    topic: str,
    receivers: Callable[..., Receiver],
    monkeypatch: pytest.MonkeyPatch,
    *,
    variable: str,
    scheme: str,
    kind: type[_Handler],
    path: str,
) -> None:
    """But for the hosts of `NO_PROXY`."""
    proxy, direct = receivers(kind), receivers()
    monkeypatch.setenv(variable, proxy.url.replace("http://", f"{scheme}://").removesuffix("/hook"))
    monkeypatch.setenv("NO_PROXY", "elsewhere.invalid,127.0.0.1")
    pushing(_to(topic, "http://orders.invalid/hook"), _to(f"{topic}-direct", direct.url))
    for each in (topic, f"{topic}-direct"):
        http.post(f"/v1/topics/{each}/messages", json={"id": "m", "body": 1}).raise_for_status()
        wait_for_state(http, each, "m", "finished")
    assert [request.path for request in proxy.requests] == [path]
    assert len(direct.requests) == 1


def _target(**fields: Any) -> str:
    return json.dumps([{"topic": "orders", "url": "http://host/"} | fields])


@pytest.mark.parametrize(
    ("arguments", "settings", "line"),
    [
        ((), {}, "targets must be at least one"),
        (("orders",), {}, "topic needs URL"),
        (("orders", "ftp://c2hvcnQ/"), {}, "url must be an http:// or https:// URL; got 14 bytes"),
        (("orders", "http://host/\nc2hvcnQ"), {}, "url must be a valid URL; got 20 bytes"),
        (("orders", "http://☃.example/"), {}, "url must be a valid URL; got 17 bytes"),
        (("orders", "http://exa mple/"), {}, "url must be a URL with a valid host; got 16 bytes"),
        (("a b", "http://host/"), {}, "topic must be 1 to 128 letters"),
        (("orders", "http://host/"), {"LISA_SECRET": "whsec_c2hvcnQ="}, "setting secret must be whsec_ and 24 to 64"),
        (("--targets", '[{"topic": "a"}]'), {}, "setting targets.0.url must be given"),
        (("--targets", "["), {}, "setting targets must be a JSON list"),
        (("--targets", _target(url="ftp://c2hvcnQ")), {}, "setting targets.0.url must be an http:// or https:// URL\n"),
        (("--targets", _target(url=["c2hvcnQ"])), {}, "setting targets.0.url must be a valid string"),
        (("--targets", _target(headers=["c2hvcnQ"])), {}, "targets.0.headers must be a table by names of headers"),
        (
            ("--targets", _target(headers={"c2hvcnQ c": ""})),
            {},
            "targets.0.headers must be a table by names of headers",
        ),
        (("--targets", _target(headers={"Host": "c2hvcnQ"})), {}, "without 'host', which pushers set themselves"),
        (("--targets", _target(headers={"Webhook-Id": "c2hvcnQ"})), {}, "without 'webhook-id', which"),
        (("--targets", _target(headers={"lisa-topic": "c2hvcnQ"})), {}, "without 'lisa-topic', which"),
        (("--targets", _target(headers={"content-length": "7"})), {}, "without 'content-length', which"),
        (("--targets", _target(headers={"a": "1", "A": "c2hvcnQ"})), {}, "names each header once, in capitals or not"),
        (("--targets", _target(headers={"a": "c2hvcnQ\r\nb: c"})), {}, "must be a table with printable ASCII for 'a'"),
        (("--targets", _target(headers={"a": {"file": "/none"}})), {}, "for 'a' (No such file or directory)"),
        (("--targets", _target(headers={"a": {"file": "/"}})), {}, "for 'a' (Is a directory)"),
        (("--targets", _target(headers={"a": {"file": "/dev/null"}})), {}, "with printable ASCII for 'a'"),
        (("--targets", _target(headers={"a": {"path": "c2hvcnQ"}})), {}, "with printable ASCII for 'a'"),
        (
            ("--targets", _target(url="http://me:c2hvcnQ@host/", headers={"authorization": "c2hvcnQ"})),
            *({}, "setting targets.0.headers must be a table without 'authorization' where url holds a user"),
        ),
        (("http://host/c2hvcnQ", "orders"), {}, "url must be an http:// or https:// URL; got 6 bytes"),
        (
            ("orders", "http://host/"),
            {"ALL_PROXY": "socks4://me:c2hvcnQ@host"},
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY",
        ),
        (
            ("orders", "http://host/"),
            {"HTTP_PROXY": "http://c2hvcnQ:x"},
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY must be",
        ),
        (
            ("orders", "http://host/"),
            {"HTTP_PROXY": "http://h", "NO_PROXY": "10.0.0.0/8"},
            "NO_PROXY must be a list of hosts and domains",
        ),
        (("--reject-4xx",), {}, "--reject-4xx needs topic and URL"),
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
