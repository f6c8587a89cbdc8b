"""Two views of the day: a live one for terminals, plain lines for everything else."""

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.scene import Scene

__all__ = ["View", "view_for"]

_PLAIN_S, _LIVE_S = 2.0, 0.1


class View(AbstractContextManager["View"], Protocol):
    """Shows a scene, at its own pace."""

    def show(self, scene: Scene, *, last: bool = False) -> None:
        """Takes the scene as it stands now."""


def view_for(console: Console, title: str) -> "View":
    """The live view for a terminal, plain lines for all other outputs."""
    return _Live(console, title) if console.is_terminal else _Plain(console)


class _Plain:
    """A line every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def show(self, scene: Scene, *, last: bool = False) -> None:
        """Prints a line every few seconds."""
        if scene.clock is None or (time.monotonic() < self._next and not last):
            return
        self._next = time.monotonic() + _PLAIN_S
        totals = {
            name: sum(getattr(status, name) for status in scene.topics)
            for name in ("waiting", "ready", "delivered", "retry", "garbage")
        }
        line = "  ".join(f"{name} {count:>3}" for name, count in totals.items())
        done = f"boarded {scene.boarded.total():>3}  cancelled {scene.cancelled.total():>3}"
        killed = "".join(f"  {worker} killed" for worker in scene.killed)
        self._console.out(f"{scene.time:<10}  {line}  {done}  lag p50 {_p(scene.lags_ms, 50)}{killed}", highlight=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Live:
    """A display that is drawn several times a second."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        # Drawn by the caller of `show`: a thread would read the scene while it changes.
        self._live = Live(console=console, auto_refresh=False)
        self._next = 0.0

    def show(self, scene: Scene, *, last: bool = False) -> None:
        """Draws the display several times a second."""
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + _LIVE_S
            self._live.update(self._render(scene), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self, scene: Scene) -> RenderableType:
        return Group(self._header(scene), "", _board(scene), "", _workers(scene), "", _news(scene))

    def _header(self, scene: Scene) -> RenderableType:
        header = Table.grid(padding=(0, 2))
        speed = f"{scene.clock.speed:,.0f}x" if scene.clock else ""
        bar = ProgressBar(total=1.0, completed=scene.share, width=24)
        header.add_row(Text(self._title, "bold"), Text(scene.time, "bold cyan"), bar, Text(speed, "dim"))
        return header


def _board(scene: Scene) -> Table:
    # No wider than 80 columns.
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    table.add_column("topic")
    for title in ("waiting", "ready", "delivered", "retry", "garbage", "boarded", "cancelled", "lag p50", "p99"):
        table.add_column(title, justify="right", min_width=6)
    for status in scene.topics:
        lags = scene.topic_lags_ms.get(status.topic, ())
        table.add_row(
            Text(status.topic, "bold"),
            _number(status.waiting, "blue"),
            _number(status.ready, "yellow"),
            _number(status.delivered, "cyan"),
            _number(status.retry, "magenta"),
            _number(status.garbage, "red"),
            _number(scene.boarded[status.topic], "green"),
            str(scene.cancelled[status.topic]),
            _p(lags, 50),
            _p(lags, 99),
        )
    return table


def _workers(scene: Scene) -> Text:
    text = Text()
    for worker in sorted({*scene.handled_by, *scene.killed}):
        killed = scene.killed.get(worker)
        state = f"killed holding {len(killed.held)}" if killed else "at work"
        text.append(f" {worker} ", "bold")
        text.append(f"{state}, {scene.handled_by[worker]} boarded   ", "red" if killed else "green")
    return text


def _news(scene: Scene) -> Text:
    text = Text()
    for label, news in scene.news:
        style = "red bold" if "killed" in news else "yellow" if "fails" in news else ""
        text.append(f" {label:<10}", "dim").append(f"{news}\n", style)
    return text


def _number(count: int, style: str) -> Text:
    return Text(str(count), style if count else "dim")


def _p(lags_ms: Iterable[int], share: int) -> str:
    lags = sorted(lags_ms)
    return f"{lags[len(lags) * share // 100]} ms" if lags else "-"
