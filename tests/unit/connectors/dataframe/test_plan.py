"""Where the copy of a DataFrame goes, as Hadoop spells it."""

from __future__ import annotations

import pytest

from weir.connectors.dataframe.plan import _spark_location
from weir.runtime.storage.locations import location_below


@pytest.mark.parametrize(
    ("location", "spelled"),
    [
        ("/data/with space", "file:///data/with space/rows"),
        ("file:///data/with%20space", "file:///data/with space/rows"),
        ("s3://bucket/sources/a%2520b?region=eu-west-1", "s3a://bucket/sources/a%20b/rows"),
        ("s3://key:secret@bucket/sources?endpoint=https://host", "s3a://bucket/sources/rows"),
        ("gcs://bucket/sources", "gs://bucket/sources/rows"),
        (
            "abfss://container@account.dfs.core.windows.net/x?sas_key=y",
            "abfss://container@account.dfs.core.windows.net/x/rows",
        ),
        ("hdfs://namenode:8020/x", "hdfs://namenode:8020/x/rows"),
    ],
)
def test_hadoop_gets_the_path_without_options_and_credentials(location: str, spelled: str) -> None:
    assert _spark_location(location_below(location, "rows")) == spelled
