"""The peers: their packages and programs, and their best settings. Each has an adapter of its name here."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PEERS", "Peer"]

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer."""

    name: str
    about: str
    """How it stores delayed messages, and how it was run; for readers of the results."""
    programs: tuple[tuple[str, ...], ...]
    """The workers and their helpers: names of programs in its environment, with arguments."""
    producer: tuple[str, ...] = ()
    """The program that sends, if it is not the adapter's module."""
    packages: tuple[str, ...] = ()
    """From PyPI, pinned."""
    npm: tuple[str, ...] = ()
    """From npm, pinned."""
    debian: str = ""
    """The Debian package of its server; empty for peers on Redis."""
    language: str = "python"
    drained: int = 5_000
    """Messages in a drain: a few seconds for it."""

    @property
    def on_redis(self) -> bool:
        """Whether Redis is its broker."""
        return not self.debian


def _adapter(name: str) -> tuple[str, ...]:
    return ("python", "-m", "benchmarks.peers", name, "work")


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "bullmq",
            "Node.js; a sorted set, which workers look at when the next is due; 1 process, concurrency 100",
            (("node", str(_HERE / "bullmq.cjs"), "work"),),
            producer=("node", str(_HERE / "bullmq.cjs"), "send"),
            npm=("bullmq@6.7.0", "ioredis@5.11.1"),
            language="node",
            drained=20_000,
        ),
        Peer(
            "docket",
            "asyncio; a stream and a sorted set; 2 processes, concurrency 50, looking every 10 ms",
            (_adapter("docket"),) * 2,
            packages=("pydocket==0.27.0", "hiredis==3.5.0"),
        ),
        Peer(
            "streaq",
            "asyncio; a stream and a sorted set, looked at twice a second; 2 processes, concurrency 100",
            (_adapter("streaq"),) * 2,
            packages=("streaq==7.2.0", "hiredis==3.5.0"),
        ),
        Peer(
            "arq",
            "asyncio; a sorted set, polled; 2 processes, concurrency 100, polling every 10 ms",
            (_adapter("arq"),) * 2,
            packages=("arq==0.28.0",),
        ),
        Peer(
            "saq",
            "asyncio; a sorted set, looked at once a second; takes whole seconds; 2 processes, concurrency 100",
            (_adapter("saq"),) * 2,
            packages=("saq[redis,hiredis]==0.26.4", "typing-extensions==4.16.0"),
        ),
        Peer(
            "taskiq",
            "asyncio; a scheduler reads what is due each second, workers a stream; 2 processes",
            (
                ("taskiq", "worker", "benchmarks.peers.taskiq:broker", "--workers", "2"),
                (
                    "taskiq",
                    "scheduler",
                    "benchmarks.peers.taskiq:scheduler",
                    "--update-interval",
                    "1",
                    "--loop-interval",
                    "1",
                ),
            ),
            packages=("taskiq==0.13.0", "taskiq-redis==1.2.4", "hiredis==3.5.0"),
        ),
        Peer(
            "rq",
            "a sorted set, looked at once a second by a scheduler; 2 processes that do not fork for each job",
            (("rq", "worker", "--with-scheduler", "--worker-class", "rq.SimpleWorker", "--url", "{url}"),) * 2,
            packages=("rq==3.0.0", "hiredis==3.5.0"),
        ),
        Peer(
            "celery",
            "delays are held in the workers' memory; 2 processes",
            (("celery", "-A", "benchmarks.peers.celery:app", "worker", "--concurrency", "2", "--loglevel", "WARNING"),),
            packages=("celery[redis]==5.7.0", "hiredis==3.5.0"),
        ),
        Peer(
            "dramatiq",
            "delays are held in the workers' memory; 2 processes with 8 threads",
            (("dramatiq", "benchmarks.peers.dramatiq", "--processes", "2", "--threads", "8"),),
            packages=("dramatiq[redis]==2.2.1", "hiredis==3.5.0"),
        ),
        Peer(
            "huey",
            "a sorted set, looked at once a second; 2 processes",
            (("huey_consumer", "benchmarks.peers.huey.huey", "-k", "process", "-w", "2", "-s", "1", "-d", "0.01"),),
            packages=("huey==3.5.4", "redis==6.4.0", "hiredis==3.5.0"),
        ),
        Peer(
            "beanstalkd",
            "a server of its own; takes whole seconds; 1 Python client that reserves and deletes",
            (_adapter("beanstalkd"),),
            packages=("greenstalk==2.1.1",),
            debian="beanstalkd",
            drained=20_000,
        ),
        Peer(
            "rabbitmq",
            "a server of its own; a queue with TTL and a dead-letter exchange for each delay; 1 Python client",
            (_adapter("rabbitmq"),),
            packages=("pika==1.4.4",),
            debian="rabbitmq-server",
            drained=20_000,
        ),
    )
}
