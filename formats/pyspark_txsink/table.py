"""Reading a table with Spark's own Parquet reader: exactly the committed files of one version.

Promises: no file that no commit names is read, and none is read twice, whatever lies in the directory.
Relies on: `Table.files`; Spark's reader, which prunes partitions and pushes filters down as ever. Where Spark cannot
reach the store (S3 without `hadoop-aws`, or with nothing told to its `s3a`), the format reads.
Does not promise: to follow the table. A DataFrame is of one version.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession

from pyspark_txsink import options as text, types
from pyspark_txsink.fast import uri_of
from pyspark_txsink.session import is_connect
from txsink.reading.table import open_table
from txsink.store.protocol import StorageOptions

_S3 = ("s3", "s3a")
# What tells `s3a` where and who, besides what it finds in the environment.
_TOLD = ("access.key", "aws.credentials.provider", "endpoint", "security.credential.provider.path")
_DEFAULTS = "core-default.xml"
# Whatever the session says: no committed file is passed by, and days are those of the calendar that wrote them.
_READ = {
    "timeZone": "UTC",  # in the names of directories
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
}


def read(
    spark: SparkSession,
    path: str,
    version: int | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> DataFrame:
    """See `pyspark_txsink.read`."""
    storage_options = StorageOptions.of(storage_options)
    path = text.absolute(path)
    table = open_table(path, storage_options=storage_options)
    at = table.version if version is None else version
    files = table.files(version)
    columns = types.struct_of(table.columns(version))
    if not files:
        return spark.createDataFrame([], columns)
    # Replaced since, and kept where Spark's reader does not look.
    is_old = version is not None and not {file.path for file in files} <= {file.path for file in table.files()}
    # Another program's file, whose directory may tell its partition in other words than ours, or not at all.
    is_foreign = table.partition_columns and any(file.epoch is None for file in files)
    if is_old or is_foreign or not is_reached(spark, path, storage_options):
        reader = spark.read.format("txsink").options(**text.of_storage(storage_options))
        return reader.option("versionAsOf", at).load(path)
    root = f"s3a:/{table.path}" if urlsplit(path).scheme in _S3 else uri_of(path, table.path)
    paths = [f"{root}/{file.path}" for file in files]
    found = spark.read.schema(columns).options(basePath=root, **_READ).parquet(*paths)
    return found.select(*map(types.quoted, columns.names))  # Spark puts what directories tell last


def is_reached(spark: SparkSession, path: str, storage_options: StorageOptions) -> bool:
    """Whether Spark's own reader gets at the files; found out from its configuration, without a request.

    On S3 the class of `s3a` must be there, and told something of its own if the storage options tell us something.
    """
    parts = urlsplit(path)
    if parts.scheme not in _S3:
        return True
    if is_connect(spark):
        return False
    conf = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 -- what Spark's reader itself asks
    if conf.getClassByNameOrNull(conf.get("fs.s3a.impl")) is None:
        return False
    if not storage_options:
        return True
    names = [f"fs.s3a.{more}{name}" for more in ("", f"bucket.{parts.netloc}.") for name in _TOLD]
    return any(conf.get(name) and [*conf.getPropertySources(name)] != [_DEFAULTS] for name in names)
