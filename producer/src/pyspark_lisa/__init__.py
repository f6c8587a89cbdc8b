"""Registers `format("lisa")`: Spark looks for `DefaultSource` in top-level modules named `pyspark_*`."""

import warnings

__all__ = ["DefaultSource"]

try:
    from lisa_producer.spark import LisaDataSource as DefaultSource
except ImportError as error:
    # Spark imports all such modules before it serves any source: an error here would break the others.
    warnings.warn(f'format("lisa") needs lisa-producer[spark]: {error}', stacklevel=2)
