"""Spark's data source `lisa`: writing and reading topics, in batches and in streams. Needs `lisa-producer[spark]`.

Spark finds it by itself wherever this package is installed; `spark.dataSource.register(LisaDataSource)` is the
explicit way.
"""

from lisa_producer.spark.source import LisaDataSource

__all__ = ["LisaDataSource"]
