"""Makes `format("lisa")` known to Spark, which looks for `DefaultSource` in top-level modules named `pyspark_*`."""

import warnings

__all__ = ["DefaultSource"]

try:
    from lisa_producer.spark import LisaDataSource as DefaultSource
except ImportError as error:
    # Spark imports every such module before it serves any source: an error here would take all others down.
    warnings.warn(f'format("lisa") needs lisa-producer[spark]: {error}', stacklevel=2)
