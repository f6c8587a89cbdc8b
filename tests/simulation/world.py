"""One run: a cast, its steps, then calm, a drain, and the verdict."""

import asyncio
import contextvars
import os
import random
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.checker import check
from chaos.draining import audit, is_drained, keys_left, unfinished, write_left, write_letters
from chaos.history import Clock as ClockSample, Drained, Fault, Outage, Problem, dump, now
from chaos.kinds import STRANDED
from chaos.timeline import Timeline
from chaos.topics import METERED, POLICIES, PREFIX, RETURNED, topics_of
from chaos.verdict import Verdict
from lisa_common.client.connection import Connection
from lisa_common.errors import LisaError
from lisa_common.model.keys import ShardKeys, dropped_key, schedules_key, topics_key
from lisa_common.model.policy import Policy
from lisa_common.model.sharding import Layout
from lisa_common.protocol.registry import read_mark
from simulation import beginnings, holds, ticks
from simulation.clock import Clock
from simulation.loop import PROGRAM, Loop, Program, within
from simulation.network import Network
from simulation.notebook import Notebook
from simulation.operators import PERIOD_MS, SPARE, Operators, policies_of, prepare
from simulation.plan import Plan, Step, audited, names_of
from simulation.programs import Programs
from simulation.server import Server
from simulation.story import tell
from simulation.strikes import Strike
from simulation.ticks import Tick
from support.in_flight import InFlight

__all__ = ["Outcome", "World", "play"]

_AUDIT_S = 5.0
_SAMPLE_S = 1.0
_DRAIN_S = 150.0
"""Within this virtual time after the last fault every topic must be drained."""
_CALM_S = 3.0
_TRACES_S = 3.0
"""How long after a fault its traces show, at least."""

_BY_PRODUCER = frozenset(("send", "again", "batch", "cancel", "reschedule", "chain", "draft", "revise", "end"))
_BY_OPERATOR = frozenset(
    (
        *("reshard", "pause", "limit", "change the backoff", "replay", "purge", "abort", "repair", "guest", "drop"),
        *("damage", "share a rate", "skip"),
    )
)


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    seed: str
    digest: str = ""
    violations: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    """What happened, fault by fault, for people."""
    ticks: list[Tick] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """The keys that are left, where the plan asks for them."""
    history: list[str] = field(default_factory=list)
    """A line for each event, where the plan asks for it."""
    fired: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    deliveries: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    callbacks: int = 0
    exchanges: int = 0

    def as_json(self) -> dict[str, Any]:
        """For another process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class World:
    """The machine room of one run."""

    def __init__(self, plan: Plan, loop: Loop, network: Network, server: Server, clock: Clock) -> None:
        self.plan, self.loop, self.network, self.server, self.clock = plan, loop, network, server, clock
        self.recorder = Notebook(network.note)
        self.admin: Any = redis.Redis(unix_socket_path=str(server.path), protocol=2, retry=Retry(NoBackoff(), 0))
        self.quick: Any = self.admin
        self._programs = Programs(plan.seed, loop, plan.cast, self.recorder)
        self._operators = Operators(self)
        self._running: dict[str, Program] = {}
        self._lives: Counter[str] = Counter()
        self._down_s: dict[Program, float] = {}
        self._is_calm = False
        self._agains = 0
        self._audited = self._counted = 0
        self._most_shift_us = 0
        self._names = names_of(plan.cast)
        self._story: list[tuple[float, str]] = []
        self.outcome = Outcome(plan.seed)
        loop.on_kill = self._died
        network.on_strike = self._struck

    def layout(self, topic: str, *, quick: bool = False) -> Layout:  # noqa: ARG002 - there is one client for all
        """The shards of a topic, as the registry has them now."""
        return Layout(PREFIX, topic, Policy.load(self.admin.hget(topics_key(PREFIX), topic)))

    # What happens.

    async def run(self) -> None:
        """Runs the plan, heals, drains, and leaves the history for the verdict."""
        self._start_operator("operator-first", prepare(self.plan.cast))
        await self._until_ended("operator-first")
        for name in self._names:
            self._start(name)
        watch = asyncio.create_task(self._watch())
        await asyncio.sleep(1)
        began = self.loop.time()
        for step in self.plan.steps:
            await asyncio.sleep(began + step.at_s - self.loop.time())
            self._take(step)
        await asyncio.sleep(max(0.0, began + self.plan.seconds - self.loop.time()))
        await self._heal()
        drained_s = await self._drain()
        watch.cancel()
        self._look_at_the_rest()
        checks = {"9": self._audited, "11": 1, "15": self._counted}
        self.recorder.write(Drained(now(), drained_s, checks))

    def _start(self, name: str) -> None:
        self._lives[name] += 1
        life = self._lives[name]
        shifts = self.plan.cast.shifts_ms
        program = self.loop.start(f"{name}#{life}" if life > 1 else name, self._programs.main(name, life))
        program.shift_us = shifts[self._names.index(name) % len(shifts)] * 1_000
        assert program.main
        program.main.add_done_callback(partial(self._ended, program), context=self.network.context)
        self._running[name] = program

    def _start_operator(self, name: str, work: Any) -> None:
        self._running[name] = self.loop.start(name, lambda: work)

    async def _until_ended(self, name: str) -> None:
        """Waits for an operator; an error of theirs is one of the run."""
        main = self._running[name].main
        assert main
        await asyncio.wait((main,))
        main.result()

    def _ended(self, program: Program, main: asyncio.Task[Any]) -> None:
        """A program that was stopped is started again; one that has ended by itself is a problem."""
        if main.cancelled() or main.exception() or not program.is_stopped:
            error = "cancelled" if main.cancelled() else main.exception()
            self.recorder.write(Problem(now(), 14, f"{program.name} has ended by itself: {error!r}"))
        self.loop.kill(program)

    def _died(self, program: Program) -> None:
        """Somebody else starts a program again; an operator gives up."""
        self.network.note("dies", program.name)
        name = program.name.partition("#")[0]
        if self._running.get(name) is not program or name not in self._names:
            return
        down_s = 0.05 if self._is_calm else self._down_s.pop(program, 0.1)
        self._tell(f"{program.name} dies, and is started again after {down_s:.3g} s")
        # The checker knows these as deaths.
        self._fault(f"worker-{name} starts", down_s)
        self.loop.call_later(down_s, self._start, name, context=self.network.context)

    def _tell(self, line: str) -> None:
        self._story.append((self.loop.time(), line))

    def _fault(self, kind: str, seconds: float) -> None:
        within_world = self.network.context.copy()
        within_world.run(self.recorder.write, Fault(now() + seconds + _TRACES_S, now(), kind))

    def _struck(self, strike: Strike, program: Program, names: str) -> None:
        """A strike has hit a call."""
        self.outcome.fired[strike.fate] += 1
        self._tell(f"{program.name}: {strike.fate} of {names}, {strike.seconds:.3g} s")
        self._down_s[program] = strike.down_s
        self._fault(
            STRANDED if strike.fate in ("leave it half-open", "swallow the reply") else strike.fate, strike.seconds
        )

    def _take(self, step: Step) -> None:
        """Begins a step."""
        self.network.note("step", step.number, step.what)
        if step.what in _BY_PRODUCER:
            self._operate(step)
            return
        self.outcome.fired[step.what] += 1
        if step.what != "strike":
            self._tell(str(step).partition(" s  ")[2])
        if step.what in _BY_OPERATOR:
            # Not in the checker's books: an operator is no excuse for a failed send.
            self._start_operator(f"operator-{step.number}", self._operators.carry_out(step))
        else:
            self._break(step.what, step.facts)

    def _operate(self, step: Step) -> None:
        """An operation of a producer, if that is alive; its caller may give it up at any moment."""
        program = self._running[f"producer-{step.facts['by'] % self.plan.cast.producers}"]
        if program.is_alive and program.callbacks:
            name = program.name.partition("#")[0]
            task = within(program, self.loop.create_task, self._guarded(name, step))
            if (after_s := step.facts.get("cancelled_after_s")) is not None:
                within(program, self.loop.call_later, after_s, task.cancel)

    async def _guarded(self, name: str, step: Step) -> None:
        try:
            await self._programs.carry_out(name, step)
        except LisaError as error:
            # `Sends` notes every error that a caller may see. This one came without its leave.
            self.recorder.write(Problem(now(), 14, f"{step.what}: {error!r}"))

    def _break(self, what: str, facts: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - one branch for each kind
        network, seconds = self.network, float(facts.get("seconds", 0))
        program = self._running.get(str(facts.get("program")))
        match what:
            case "strike":
                down_s, command = facts["down_s"], facts["command"]
                network.arm(Strike(facts["fate"], facts["role"], command, facts["seconds"], down_s))
                return
            case "stop" if program and program.is_alive:
                self._programs.stop(program)
            case "kill" | "kill within" | "freeze" | "a program's clock steps" if program and program.is_alive:
                self._down_s[program] = facts.get("down_s", 0.1)
                if what == "kill":
                    self.loop.kill(program)
                elif what == "kill within":
                    program.dies_at = program.callbacks + facts["callbacks"]
                elif what == "freeze":
                    network.freeze(program, seconds)
                else:
                    program.shift_us += facts["by_ms"] * 1_000
            case "a second life" if program and program.is_alive:
                # As on a machine that is taken for dead: the program is started elsewhere, and goes on here later.
                network.freeze(program, seconds)
                self._start(str(facts["program"]))
            case "server is killed" if self.server.runs:
                seconds = facts["down_s"]
                self._kill_server(facts["loss_s"])
                self.loop.call_later(seconds, self._start_server)
            case "server hangs":
                network.hang(seconds)
            case "server is full" if self.server.runs:
                self.server.ask("CONFIG", "SET", "maxmemory", "1")
                self.loop.call_later(seconds, self._make_room)
            case "server refuses":
                network.refuses_until = self.loop.time() + seconds
                network.cut_all()
            case "scripts are flushed" if self.server.runs:
                self.server.ask("SCRIPT", "FLUSH", "SYNC")
            case "all connections break":
                network.cut_all()
            case "server's clock steps":
                self._step_clock(facts["by_ms"])
            case "the machine sleeps":
                seconds = max(0.0, facts["until_s"] - self.loop.time())
                # Once the fault is written.
                self.loop.call_soon(self._sleep, seconds)
        self._fault(what, seconds)

    def _sleep(self, seconds: float) -> None:
        """As a machine that is suspended with all that runs on it: no callback runs, while all clocks go on."""
        self._sample()
        self.clock.us += int(seconds * 1e6)
        self._sample()

    def _kill_server(self, loss_s: float) -> None:
        self.recorder.write(Outage(now()))
        self._operators.last_outage = now()
        self.server.kill(loss_s)
        self.network.cut_all()
        for topic in self._operators.lost_reshards():
            self._agains += 1
            self._tell(f"an operator will reshard {topic} again, because the server may have lost it")
            self._start_operator(f"operator-again-{self._agains}", self._operators.reshard_again(topic))

    def _start_server(self) -> None:
        if not self.server.runs:
            self.server.start()
            self._sample()

    def _make_room(self) -> None:
        if self.server.runs:
            self.server.ask("CONFIG", "SET", "maxmemory", "0")

    def _step_clock(self, by_ms: int) -> None:
        self._sample()
        self.clock.server_shift_us += by_ms * 1_000
        self._most_shift_us = max(self._most_shift_us, self.clock.server_shift_us)
        self._sample()

    # What is watched.

    async def _watch(self) -> None:
        """Samples the server's clock, counts what is in flight, and audits now and then."""
        in_flight = InFlight(self.admin, ShardKeys(PREFIX, METERED).of("ready"))
        most = POLICIES[METERED].max_in_flight or 0
        turn = 0
        while True:
            await asyncio.sleep(_SAMPLE_S)
            turn += 1
            self._sample()
            if not self.server.runs or self.network.hangs:
                continue
            self.clock.show_server()
            if METERED in self.plan.cast.topics and self.admin.exists(ShardKeys(PREFIX, METERED).of("ready")):
                self._counted += 1
                count = in_flight.count()
                if count > most:
                    text = f"{METERED}: {count} in flight, {most} allowed: {in_flight.told}"
                    self.recorder.write(Problem(now(), 15, text))
            if turn % _AUDIT_S == 0:
                self._audit()

    def _sample(self) -> None:
        self.recorder.write(ClockSample(now(), now(), self.clock.server_ms))

    def _audit(self) -> None:
        with Connection(self.server.url, name="audit", timeout_s=60) as connection:
            for topic in self._topics:
                self._audited += audit(self, connection, topic)

    @property
    def _topics(self) -> tuple[str, ...]:
        return audited(self.plan.cast)

    # How it ends.

    async def _heal(self) -> None:
        """Ends all faults."""
        self._is_calm, self._operators.calm_since = True, now()
        self._tell("all faults end")
        network = self.network
        network.disarm()
        network.refuses_until = 0.0
        self._start_server()
        self._make_room()
        for program in list(self._running.values()):
            program.is_frozen = False
            program.dies_at = None
        network.go_on()
        await asyncio.sleep(_CALM_S)
        if self.clock.server_shift_us < self._most_shift_us:
            # What was sent while the clock was ahead waits for that time.
            self._step_clock((self._most_shift_us - self.clock.server_shift_us) // 1_000)
            self._fault("the clock is set forward, to drain", 0)
        # Operators of before may still be at work.
        for name, program in list(self._running.items()):
            if program.role == "operator" and program.is_alive and program.main and not program.main.done():
                await self._until_ended(name)
        self._start_operator("operator-last", self._operators.tidy_up())
        await self._until_ended("operator-last")

    async def _drain(self) -> float:
        """Waits until only what the docs allow is left. Returns how long that took, in virtual seconds."""
        began = self.loop.time()
        while self.loop.time() < began + _DRAIN_S:
            await asyncio.sleep(1)
            if all(is_drained(self, topic) for topic in self._topics) and self._callers_are_done():
                return self.loop.time() - began
        left = {
            f"{keys.tag} {name}": size
            for topic in self._topics
            for keys in self.layout(topic).served
            for name, size in unfinished(self.admin, keys)
            if size
        }
        self.recorder.write(Problem(now(), 14, f"not drained after {_DRAIN_S:g} s: {left}"))
        return _DRAIN_S

    def _callers_are_done(self) -> bool:
        """Whether no producer is still at work, whose message would come late."""
        producers = [program for program in self._running.values() if program.role == "producer"]
        tasks = [task for task in asyncio.all_tasks(self.loop) if getattr(task, "program", None) in producers]
        return not any(getattr(task.get_coro(), "__name__", "") == "_guarded" for task in tasks)

    def _look_at_the_rest(self) -> None:
        """What is left in the end: dead letters, and keys that nobody needs."""
        self._audit()
        for topic in self.plan.cast.topics:
            write_left(self, topic)
        if RETURNED in self._topics:
            write_letters(self)
        for name, program in self._running.items():
            if program.role == "operator" and program.main and program.main.done() and program.main.exception():
                self.recorder.write(Problem(now(), 14, f"{name} failed: {program.main.exception()!r}"))
        # A manager trims a stream and drops the door of its topic some time after the last message.
        left = keys_left(self, self._topics) - {key.decode() for key in self._allowed()}
        if left:
            self.recorder.write(Problem(now(), 11, f"keys are left: {sorted(left)}"))

    def _allowed(self) -> list[bytes]:
        """Keys of the schedule, of rates, and of topics that were dropped less than a minute ago."""
        keys = list(self.admin.scan_iter(count=1_000))
        own = [key for key in keys if b"{" + ticks.TICKS.encode() in key or key.endswith(b":pace")]
        return [*own, *self._spare(keys), *(key.encode() for key in (schedules_key(PREFIX), dropped_key(PREFIX)))]

    def _spare(self, keys: list[bytes]) -> list[bytes]:
        """Keys of the topic that operators drop: of shards that managers look after, and those that hold no messages.

        Its operators may be suspended, and their sends late, so a manager declares it again when it remembers the drop.
        """
        mark, stored = self.admin.hget(dropped_key(PREFIX), SPARE), self.admin.hget(topics_key(PREFIX), SPARE)
        layouts = [read_mark(PREFIX, SPARE, mark)[1]] if mark else []
        layouts += [self.layout(SPARE)] if stored else []
        known = {key.encode() for layout in layouts for shard in layout.served for key in shard.all()}
        spare = [key for key in keys if b"{" + SPARE.encode() in key]
        empty = [
            key for key in spare if key.endswith(b":closed") or (key.endswith(b":ready") and not self.admin.xlen(key))
        ]
        return [*known, *empty]

    def judge(self) -> Outcome:
        """The verdict on the history."""
        outcome = self.outcome
        groups = self.plan.cast.groups
        topics = {name: replace(it, groups=groups) for name, it in topics_of(policies_of(self.plan.cast)).items()}
        events = sorted((*self.recorder.events, *self.network.repeats.events), key=lambda event: event.at)
        verdict: Verdict = check(events, topics, groups)
        outages = [event.at for event in events if isinstance(event, Outage)]
        if self.plan.cast.ticks and not self.plan.cast.schedules:
            timeline = Timeline([event for event in events if isinstance(event, ClockSample)])
            changes, left = self._operators.changes, ticks.stored(self)
            seen = self._programs.ticks
            may_skip = self.plan.cast.ticks_skip
            ticks.judge(verdict, seen, left, PERIOD_MS, outages, changes=changes, timeline=timeline, may_skip=may_skip)
        if not any(step.what == "server's clock steps" and step.facts["by_ms"] < 0 for step in self.plan.steps):
            holds.judge(verdict, self._programs.holds, events, outages)
        others = groups if self.plan.cast.consumers else ()
        beginnings.judge(verdict, self._programs.lives, outages, others)
        lasts = {step.facts["id"]: step.facts["last"] for step in self.plan.steps if step.what == "chain"}
        if not {"server is full", "server's clock steps"} & {step.what for step in self.plan.steps}:
            self._programs.links.tries = self.network.repeats.tries
        self._programs.links.judge(verdict, self.plan.cast.linkers, lasts, outages, self.network.repeats.events)
        outcome.violations = [f"promise {promise}: {text}" for promise, text in verdict.violations]
        told = [*self._story, *tell(outcome.violations, events)]
        outcome.story = [f"{at_s:8.3f} s  {line}" for at_s, line in sorted(told, key=lambda each: each[0])]
        outcome.checked.update({str(promise): count for promise, count in verdict.checked.items()})
        outcome.digest = self.network.digest
        outcome.ticks = self._programs.ticks
        if self.plan.tells:
            outcome.keys = sorted(key.decode(errors="replace") for key in self.admin.scan_iter(count=1_000))
            outcome.history = [dump(event).decode() for event in events]
        outcome.messages, outcome.deliveries = verdict.counts["messages"], verdict.counts["deliveries"]
        outcome.commands.update(self.network.commands)
        outcome.pairs.update({f"{first} > {second}": n for (first, second), n in self.network.pairs.items()})
        outcome.virtual_s = self.clock.us / 1e6
        outcome.callbacks, outcome.exchanges = self.loop.callbacks, self.network.exchanges
        return outcome


def play(plan: Plan, clock: Clock, binary: Path, directory: Path, log: Path | None = None) -> Outcome:
    """Plays a plan in this process, which must be under clock.c."""
    environment = dict(os.environ) | {"SIM_CLOCK": os.environ["SIM_SERVER_CLOCK"]}
    server = Server(binary, directory, clock, environment)
    loop = Loop(clock, random.Random(f"choice {plan.seed}"))
    context = contextvars.copy_context()
    context.run(PROGRAM.set, Program("world"))
    server.start()
    network = Network(loop, server, plan.seed, context.copy())
    if log:
        network.log = log.open("w")
    try:
        world = World(plan, loop, network, server, clock)
        context.run(loop.run_until_complete, context.run(world.run))
        return world.judge()
    finally:
        server.close()
        if network.log:
            network.log.close()
