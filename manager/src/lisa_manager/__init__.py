"""The daemon that promotes, reclaims and trims; the operator's commands; and the operator's Python API."""

from typing import TYPE_CHECKING

from lisa_common import __version__
from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
    from lisa_common.model.death import Death
    from lisa_common.model.failure import Failure
    from lisa_common.model.pattern_policies import Origin, PatternPolicy
    from lisa_common.model.record import Record
    from lisa_common.model.schedule import Schedule
    from lisa_common.model.worker_state import RunningHandler, Wish, WorkerState, WorkerStatus
    from lisa_common.protocol.managing import AbortOutcome
    from lisa_common.protocol.producing import CancelOutcome, CopyState, Found, RescheduleOutcome, State
    from lisa_common.protocol.registry import Topic
    from lisa_manager.admin.activity import Activity
    from lisa_manager.admin.async_client import AsyncAdmin
    from lisa_manager.admin.audit.check import CheckReport, Finding
    from lisa_manager.admin.audit.problem import Kind, Problem
    from lisa_manager.admin.client import Admin
    from lisa_manager.admin.events import TopicEvents
    from lisa_manager.admin.garbage.bulk import BulkResult, GarbageFilter, GarbageList, OnProgress, StopBulk
    from lisa_manager.admin.garbage.shard import REASONS, DeadLetter
    from lisa_manager.admin.garbage.summary import GarbageCause, GarbageSummary
    from lisa_manager.admin.groups.consumers import ConsumerStatus
    from lisa_manager.admin.groups.debts import DroppedGroup, GroupDebt
    from lisa_manager.admin.messages.cancel_many import WaitingFilter
    from lisa_manager.admin.messages.listing import ListedMessage, MessagePage
    from lisa_manager.admin.messages.trace import Hop
    from lisa_manager.admin.operations import Operation, new_operation_id
    from lisa_manager.admin.schedules.changes import ImportedSchedules
    from lisa_manager.admin.schedules.sends import Backfilled
    from lisa_manager.admin.schedules.states import ScheduleState
    from lisa_manager.admin.topics.due_counts import DueCounts
    from lisa_manager.admin.topics.history import Lags, Sample
    from lisa_manager.admin.topics.patterns import Explained, PatternChange
    from lisa_manager.admin.topics.policies import DEFAULT, Dropped
    from lisa_manager.admin.topics.reshard import ReshardResult
    from lisa_manager.admin.topics.status import BUCKETS, GroupStatus, TopicSizes, TopicStatus
    from lisa_manager.admin.topics.traffic import TopicTraffic
    from lisa_manager.server_checks import Health
    from lisa_manager.server_facts import ManagerSign, NodeFacts, ServerFacts
    from lisa_manager.settings import ManagerSettings

__all__ = [
    "BUCKETS",
    "DEFAULT",
    "REASONS",
    "AbortOutcome",
    "Activity",
    "Admin",
    "AsyncAdmin",
    "Backfilled",
    "BulkResult",
    "CancelOutcome",
    "CheckReport",
    "ConsumerStatus",
    "CopyState",
    "DeadLetter",
    "Death",
    "Dropped",
    "DroppedGroup",
    "DueCounts",
    "Explained",
    "Failure",
    "Finding",
    "Found",
    "GarbageCause",
    "GarbageFilter",
    "GarbageList",
    "GarbageSummary",
    "GroupDebt",
    "GroupStatus",
    "Health",
    "Hop",
    "ImportedSchedules",
    "Kind",
    "Lags",
    "ListedMessage",
    "ManagerSettings",
    "ManagerSign",
    "MessagePage",
    "NodeFacts",
    "OnProgress",
    "Operation",
    "Origin",
    "PatternChange",
    "PatternPolicy",
    "Problem",
    "Record",
    "RescheduleOutcome",
    "ReshardResult",
    "RunningHandler",
    "Sample",
    "Schedule",
    "ScheduleState",
    "ServerFacts",
    "State",
    "StopBulk",
    "Topic",
    "TopicEvents",
    "TopicSizes",
    "TopicStatus",
    "TopicTraffic",
    "WaitingFilter",
    "Wish",
    "WorkerState",
    "WorkerStatus",
    "__version__",
    "new_operation_id",
]

if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "lisa_common.model.death": "Death",
            "lisa_common.model.failure": "Failure",
            "lisa_common.model.pattern_policies": "Origin PatternPolicy",
            "lisa_common.model.record": "Record",
            "lisa_common.model.schedule": "Schedule",
            "lisa_common.model.worker_state": "RunningHandler Wish WorkerState WorkerStatus",
            "lisa_common.protocol.managing": "AbortOutcome",
            "lisa_common.protocol.producing": "CancelOutcome CopyState Found RescheduleOutcome State",
            "lisa_common.protocol.registry": "Topic",
            "lisa_manager.admin.activity": "Activity",
            "lisa_manager.admin.async_client": "AsyncAdmin",
            "lisa_manager.admin.garbage.bulk": "BulkResult GarbageFilter GarbageList OnProgress StopBulk",
            "lisa_manager.admin.messages.cancel_many": "WaitingFilter",
            "lisa_manager.admin.audit.check": "CheckReport Finding",
            "lisa_manager.admin.client": "Admin",
            "lisa_manager.admin.groups.consumers": "ConsumerStatus",
            "lisa_manager.admin.topics.due_counts": "DueCounts",
            "lisa_manager.admin.events": "TopicEvents",
            "lisa_manager.admin.garbage.shard": "REASONS DeadLetter",
            "lisa_manager.admin.garbage.summary": "GarbageCause GarbageSummary",
            "lisa_manager.admin.groups.debts": "DroppedGroup GroupDebt",
            "lisa_manager.admin.topics.history": "Lags Sample",
            "lisa_manager.admin.messages.listing": "ListedMessage MessagePage",
            "lisa_manager.admin.operations": "Operation new_operation_id",
            "lisa_manager.admin.topics.patterns": "Explained PatternChange",
            "lisa_manager.admin.audit.problem": "Kind Problem",
            "lisa_manager.admin.topics.reshard": "ReshardResult",
            "lisa_manager.admin.schedules.changes": "ImportedSchedules",
            "lisa_manager.admin.schedules.sends": "Backfilled",
            "lisa_manager.admin.schedules.states": "ScheduleState",
            "lisa_manager.admin.topics.status": "BUCKETS GroupStatus TopicSizes TopicStatus",
            "lisa_manager.admin.topics.policies": "DEFAULT Dropped",
            "lisa_manager.admin.messages.trace": "Hop",
            "lisa_manager.admin.topics.traffic": "TopicTraffic",
            "lisa_manager.server_checks": "Health",
            "lisa_manager.server_facts": "ManagerSign NodeFacts ServerFacts",
            "lisa_manager.settings": "ManagerSettings",
        },
    )
