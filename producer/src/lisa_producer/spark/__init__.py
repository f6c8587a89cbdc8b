"""The Spark data source `lisa`: writes and reads topics, in batches and in streams. Needs `lisa-producer[spark]`.

Spark finds it wherever this package is installed; elsewhere call `spark.dataSource.register(LisaDataSource)`.
"""

from lisa_producer.spark.source import LisaDataSource

__all__ = ["LisaDataSource"]
