"""The interface of camellia-delay-queue, field for field."""
