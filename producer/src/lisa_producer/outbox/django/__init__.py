"""The outbox as an app of Django: add "lisa_producer.outbox.django" to INSTALLED_APPS, and migrate."""
