"""The messages of a caller's iterable. If it raises, the messages taken before are not lost."""

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable

from lisa_common.errors import InvalidInput
from lisa_producer.message import Message

__all__ = ["AsyncMessageSource", "AsyncMessages", "MessageSource", "Messages"]

Messages = Iterable[Message]
AsyncMessages = Iterable[Message] | AsyncIterable[Message]


class MessageSource:
    """Iterates over messages. If the iterable raises, the iteration ends, and `error` has its exception.

    Raises InvalidInput for a value that is not iterable.
    """

    def __init__(self, messages: Messages) -> None:
        if not isinstance(messages, Iterable):
            raise InvalidInput("messages", messages, "an iterable of Message")
        self.messages = messages
        self.error: Exception | None = None

    def __iter__(self) -> Generator[Message]:
        try:
            yield from self.messages
        except Exception as error:  # noqa: BLE001 - the caller gets it, with the report
            self.error = error


class AsyncMessageSource:
    """The asyncio twin of `MessageSource`; takes both kinds of iterables."""

    def __init__(self, messages: AsyncMessages) -> None:
        if not isinstance(messages, Iterable | AsyncIterable):
            raise InvalidInput("messages", messages, "an iterable or an asynchronous iterable of Message")
        self._messages = messages
        self.error: Exception | None = None

    async def __aiter__(self) -> AsyncGenerator[Message]:
        try:
            if isinstance(self._messages, AsyncIterable):
                async for message in self._messages:
                    yield message
            else:
                for message in self._messages:
                    yield message
        except Exception as error:  # noqa: BLE001 - the caller gets it, with the report
            self.error = error
