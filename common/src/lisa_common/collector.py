"""Sets up the garbage collector for programs that handle many messages or requests."""

import gc

__all__ = ["spare_collector"]

_COLLECT_AFTER = 20_000
"""New objects that start a collection, not 700: most belong to what is under way, and are no garbage."""

_FIRST = gc.get_threshold()


def spare_collector() -> None:
    """Spares the collector what lives as long as the process: it took an eighth of the time of a request or message.

    Call it once, when the program is loaded. Thresholds that the user's code has set meanwhile stay as they are.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _FIRST:
        gc.set_threshold(_COLLECT_AFTER, *_FIRST[1:])
