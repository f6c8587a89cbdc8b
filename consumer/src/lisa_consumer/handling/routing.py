"""The routes of a worker: its handlers by topic, and their preparation when it begins to serve."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from lisa_common.bodies import BodyType, Codec
from lisa_common.errors import InvalidInput, Needs
from lisa_common.model.topic_pattern import TopicPattern, is_pattern
from lisa_common.validation import Duration, check_int, check_name, duration_ms
from lisa_consumer.delivery.core import MAX_BATCH
from lisa_consumer.handling.batches import BatchSize
from lisa_consumer.handling.handler import Route
from lisa_consumer.handling.middleware import Middleware, check_middleware
from lisa_consumer.handling.processes import Processes
from lisa_consumer.handling.retries import Retries
from lisa_consumer.settings import MAX_CONCURRENCY, ConsumerSettings

__all__ = ["PatternRoute", "Routing"]

_WITHIN_S = 0.2
"""How long a batch gathers, by default."""

_MAX_WITHIN_S = 60


class PatternRoute(NamedTuple):
    """A route for each topic that fits."""

    pattern: TopicPattern
    route_of: Callable[[str], Route]


class Routing:
    """Handlers by topic and by pattern, and the middleware around them."""

    def __init__(self, codec: Codec | None, middleware: Iterable[Middleware]) -> None:
        self._codec = codec
        self._routes: dict[str, Route] = {}
        self._patterns: list[PatternRoute] = []
        self._middleware: list[Middleware] = []
        if callable(middleware) or not isinstance(middleware, Iterable):
            raise InvalidInput("middleware", middleware, "a sequence of functions")
        for each in middleware:
            self.use(each)

    def use(self, middleware: Middleware) -> None:
        """Adds middleware within what was added before. Raises InvalidInput."""
        self._middleware.append(check_middleware(middleware))

    @contextmanager
    def using(self, middleware: Middleware) -> Iterator[None]:
        """Puts middleware around all other middleware until the block ends."""
        former = self._middleware
        self._middleware = [check_middleware(middleware), *former]
        try:
            yield
        finally:
            self._middleware = former

    @property
    def topics(self) -> list[str]:
        """The topics that have a handler by their names."""
        return list(self._routes)

    def handles(self, topic: str) -> bool:
        """Returns whether the topic has a handler, by its name or by a pattern."""
        return topic in self._routes or any(each.pattern.fits(topic) for each in self._patterns)

    def registration(
        self,
        topics: Sequence[str],
        body: Any,
        batch: int | None,
        within: Duration | None,
        *,
        concurrency: int | None,
        timeout: Duration | None,
        run_in: str | None,
        retries: Retries,
    ) -> Callable[[Any], Any]:
        """Returns a decorator that registers a handler for topics; see `Worker.on`. Both raise InvalidInput."""
        if run_in not in (None, "process"):
            raise InvalidInput("run_in", run_in, '"process", or omitted')
        bound = 1 if batch is not None else MAX_CONCURRENCY if run_in is None else os.cpu_count() or 1
        route_of = partial(
            Route,
            concurrency=bound if concurrency is None else check_int("concurrency", concurrency, 1, MAX_CONCURRENCY),
            timeout_s=None if timeout is None else duration_ms("timeout", timeout, low_ms=1) / 1000,
            body=None if body is None else BodyType(body, self._codec),
            batch=_batch_size(batch, within),
            retries=retries,
            runs_in_process=run_in is not None,
        )
        if not topics:
            raise InvalidInput("topics", topics, "at least one name")
        for topic in topics:
            if callable(topic):
                raise InvalidInput("topic", topic, 'a name, as in @worker.on("orders")')
            if is_pattern(topic):
                TopicPattern(topic)
            else:
                check_name("topic", topic)

        def register(handler: Any) -> Any:
            self._register(topics, partial(route_of, handler=handler))
            return handler

        return register

    def _register(self, topics: Sequence[str], route_of: Callable[[str], Route]) -> None:
        """Registers all of these topics or none."""
        taken = {*self._routes, *(each.pattern.text for each in self._patterns)}
        routes = dict[str, Route]()
        for topic in topics:
            if topic in taken or topic in routes:
                raise InvalidInput("topic", topic, "a topic that has no handler yet")
            # Checks the handler, that of a pattern as well.
            routes[topic] = route_of(topic)
        self._patterns += [PatternRoute(TopicPattern(topic), route_of) for topic in routes if is_pattern(topic)]
        self._routes |= {topic: route for topic, route in routes.items() if not is_pattern(topic)}

    def prepared(
        self, settings: ConsumerSettings, processes: Processes
    ) -> tuple[ConsumerSettings, dict[str, Route], list[PatternRoute]]:
        """The settings, routes and patterns to serve with: each topic can run a handler, and none more than the worker.

        Raises InvalidInput if there are none, and for middleware that cannot surround a handler.
        """
        if not self._routes and not self._patterns:
            raise InvalidInput("topics", (), "at least one topic with a handler")
        if "concurrency" not in settings.model_fields_set:
            # Nobody has set a limit, so it must not be less than one handler for each topic.
            settings = settings.model_copy(update={"concurrency": max(settings.concurrency, len(self._routes))})
        prepare = partial(Route.prepared, most=settings.concurrency, middleware=self._middleware, processes=processes)
        patterns = [each._replace(route_of=_in_turn(each.route_of, prepare)) for each in self._patterns]
        for each in patterns:
            # Not when the first topic is found.
            each.route_of(each.pattern.text)
        return settings, {topic: prepare(route) for topic, route in self._routes.items()}, patterns


def _in_turn(route_of: Callable[[str], Route], prepare: Callable[[Route], Route]) -> Callable[[str], Route]:
    return lambda topic: prepare(route_of(topic))


def _batch_size(batch: object, within: object) -> BatchSize | None:
    if batch is None:
        if within is not None:
            raise Needs("within", within, "batch")
        return None
    most = check_int("batch", batch, 1, MAX_BATCH)
    return BatchSize(most, duration_ms("within", _WITHIN_S if within is None else within, high_s=_MAX_WITHIN_S) / 1000)
