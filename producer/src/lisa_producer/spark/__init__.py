"""The Spark data source `lisa`: writes and reads topics, in batches and in streams. Needs `lisa-producer[spark]`.

Spark finds it wherever this package is installed; elsewhere, and for options of the session, call `register(spark)`.
"""

from lisa_producer.spark.progress import LisaListener
from lisa_producer.spark.source import LisaDataSource, register

__all__ = ["LisaDataSource", "LisaListener", "register"]
