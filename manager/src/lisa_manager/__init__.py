"""The daemon that promotes, reclaims and trims; the operator's commands; and the operator's Python API."""

from typing import TYPE_CHECKING

from lisa_common.lazy import lazy_names

if TYPE_CHECKING:
    from lisa_common import __version__ as __version__
    from lisa_common.model.death import Death as Death
    from lisa_common.model.failure import Failure as Failure
    from lisa_common.model.pattern_policies import Origin as Origin, PatternPolicy as PatternPolicy
    from lisa_common.model.record import Record as Record
    from lisa_common.model.schedule import Schedule as Schedule
    from lisa_common.model.worker_state import (
        RunningHandler as RunningHandler,
        Wish as Wish,
        WorkerState as WorkerState,
        WorkerStatus as WorkerStatus,
    )
    from lisa_common.protocol.managing import AbortOutcome as AbortOutcome
    from lisa_common.protocol.producing import (
        CancelOutcome as CancelOutcome,
        CopyState as CopyState,
        Found as Found,
        RescheduleOutcome as RescheduleOutcome,
        State as State,
    )
    from lisa_common.protocol.registry import Topic as Topic
    from lisa_manager.admin.activity import Activity as Activity
    from lisa_manager.admin.async_client import AsyncAdmin as AsyncAdmin
    from lisa_manager.admin.audit.check import CheckReport as CheckReport, Finding as Finding
    from lisa_manager.admin.audit.problem import Kind as Kind, Problem as Problem
    from lisa_manager.admin.client import Admin as Admin
    from lisa_manager.admin.events import TopicEvents as TopicEvents
    from lisa_manager.admin.garbage.bulk import (
        BulkResult as BulkResult,
        GarbageFilter as GarbageFilter,
        GarbageList as GarbageList,
        OnProgress as OnProgress,
        StopBulk as StopBulk,
    )
    from lisa_manager.admin.garbage.shard import REASONS as REASONS, DeadLetter as DeadLetter
    from lisa_manager.admin.garbage.summary import GarbageCause as GarbageCause, GarbageSummary as GarbageSummary
    from lisa_manager.admin.groups.consumers import ConsumerStatus as ConsumerStatus
    from lisa_manager.admin.groups.debts import DroppedGroup as DroppedGroup, GroupDebt as GroupDebt
    from lisa_manager.admin.messages.cancel_many import WaitingFilter as WaitingFilter
    from lisa_manager.admin.messages.listing import ListedMessage as ListedMessage, MessagePage as MessagePage
    from lisa_manager.admin.messages.trace import Hop as Hop
    from lisa_manager.admin.operations import Operation as Operation, new_operation_id as new_operation_id
    from lisa_manager.admin.schedules.changes import ImportedSchedules as ImportedSchedules
    from lisa_manager.admin.schedules.sends import Backfilled as Backfilled
    from lisa_manager.admin.schedules.states import ScheduleState as ScheduleState
    from lisa_manager.admin.topics.due_counts import DueCounts as DueCounts
    from lisa_manager.admin.topics.history import Lags as Lags, Sample as Sample
    from lisa_manager.admin.topics.patterns import Explained as Explained, PatternChange as PatternChange
    from lisa_manager.admin.topics.policies import DEFAULT as DEFAULT, Dropped as Dropped
    from lisa_manager.admin.topics.status import (
        BUCKETS as BUCKETS,
        GroupStatus as GroupStatus,
        TopicSizes as TopicSizes,
        TopicStatus as TopicStatus,
    )
    from lisa_manager.admin.topics.traffic import TopicTraffic as TopicTraffic
    from lisa_manager.resharding import ReshardResult as ReshardResult
    from lisa_manager.server_checks import Health as Health
    from lisa_manager.server_facts import ManagerSign as ManagerSign, NodeFacts as NodeFacts, ServerFacts as ServerFacts
    from lisa_manager.settings import ManagerSettings as ManagerSettings


if not TYPE_CHECKING:
    # For a type checker, any name would exist.
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "lisa_common": "__version__",
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
            "lisa_manager.admin.schedules.changes": "ImportedSchedules",
            "lisa_manager.admin.schedules.sends": "Backfilled",
            "lisa_manager.admin.schedules.states": "ScheduleState",
            "lisa_manager.admin.topics.status": "BUCKETS GroupStatus TopicSizes TopicStatus",
            "lisa_manager.admin.topics.policies": "DEFAULT Dropped",
            "lisa_manager.admin.messages.trace": "Hop",
            "lisa_manager.admin.topics.traffic": "TopicTraffic",
            "lisa_manager.resharding": "ReshardResult",
            "lisa_manager.server_checks": "Health",
            "lisa_manager.server_facts": "ManagerSign NodeFacts ServerFacts",
            "lisa_manager.settings": "ManagerSettings",
        },
    )
