"""The configuration of the app."""

from django.apps import AppConfig

__all__ = ["OutboxConfig"]


class OutboxConfig(AppConfig):  # type: ignore[misc] # Django publishes no types
    """The outbox. It has tables and no models, because rows are written by `Outbox` only."""

    name = "lisa_producer.outbox.django"
    label = "lisa_outbox"
    verbose_name = "Outbox of Lisa"
