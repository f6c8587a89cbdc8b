"""Programs share an environment, so each knows the names of the others' settings."""

from collections.abc import Iterator

import lisa_consumer.settings
import lisa_gateway.push.settings
import lisa_gateway.settings
import lisa_manager.settings
import lisa_producer.settings
from lisa_common.settings import _OF_PROGRAMS, Settings

__all__: list[str] = []


def _programs(kind: type[Settings]) -> Iterator[type[Settings]]:
    for each in kind.__subclasses__():
        # Other tests define settings of their own.
        if each.__module__.startswith("lisa_"):
            yield each
        yield from _programs(each)


def test_every_setting_of_a_program_is_known_to_all() -> None:
    """Otherwise its variable would end the others, as a misspelt one does."""
    modules = (lisa_consumer, lisa_gateway, lisa_manager, lisa_producer)
    assert all(modules)
    fields = {name for program in _programs(Settings) for name in program.model_fields}
    assert fields - Settings.model_fields.keys() == set(_OF_PROGRAMS)
