"""Handlers: what users register, the middleware around them, batches, and what their exceptions ask for.

`routing.py` takes registrations, `handler.py` has a route and how it is called, `processes.py` those that run in
processes. `wishes.py` has what handlers raise on purpose, `retries.py` what a registration says of other errors, and
what comes of both. Hooks of middleware belong into `middleware.py`, functions at the start and the end of
a worker into `hooks.py`. Nothing here knows of a running worker.
"""
