"""When each shard is due for one kind of work."""

from heapq import heappop, heappush

__all__ = ["DueQueue"]


class DueQueue:
    """Tags of shards, each with the moment (monotonic, in seconds) when its shard is due.

    Most tags share their moment with many others, so the heap holds moments, each once.
    """

    def __init__(self) -> None:
        self._moments: dict[str, float] = {}
        self._tags: dict[float, list[str]] = {}
        self._heap: list[float] = []

    def put(self, tag: str, moment: float) -> None:
        """Sets the moment of a tag."""
        self._moments[tag] = moment
        if tags := self._tags.get(moment):
            tags.append(tag)
        else:
            self._tags[moment] = [tag]
            heappush(self._heap, moment)

    def add(self, tag: str, moment: float) -> None:
        """Sets the moment of a tag that has none."""
        if tag not in self._moments:
            self.put(tag, moment)

    def hasten(self, tag: str, moment: float) -> bool:
        """Moves a queued tag to an earlier moment. Returns False where the tag is not queued or due no later."""
        current = self._moments.get(tag)
        if current is None or current <= moment:
            return False
        self.put(tag, moment)
        return True

    def drop(self, tag: str) -> None:
        """Removes a tag."""
        self._moments.pop(tag, None)

    def next_moment(self) -> float | None:
        """Returns the earliest moment, or None when the queue is empty."""
        while self._heap:
            moment = self._heap[0]
            tags = self._tags[moment]
            # A tag that was moved is still listed at its old moment.
            while tags and self._moments.get(tags[-1]) != moment:
                tags.pop()
            if tags:
                return moment
            del self._tags[heappop(self._heap)]
        return None

    def take_due(self, now: float, again: float) -> list[str]:
        """Returns the tags that are due. Each is due again at `again`, unless it is put at another moment."""
        due = []
        while (moment := self.next_moment()) is not None and moment <= now:
            for tag in self._tags.pop(heappop(self._heap)):
                if self._moments.get(tag) == moment:
                    del self._moments[tag]
                    due.append(tag)
        for tag in due:
            self.put(tag, again)
        return due
