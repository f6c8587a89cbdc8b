"""Keeps the tasks of a Celery application in Lisa until they are due: `bridge(app)`."""

from lisa_producer.celery.bridge import bridge

__all__ = ["bridge"]
