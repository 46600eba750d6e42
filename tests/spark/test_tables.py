"""Topics as tables and views of SQL: what Spark itself hands a data source, and what it keeps to itself."""

import pytest
from pyspark.errors import PySparkException

from tests.support.clusters.live_cluster import create_topic
from tests.support.disk.stored_topics import fill

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def topic(cluster):
    name = create_topic(cluster.node(1), "tabled")
    fill(cluster.node(1), name, [30])
    return name


@pytest.fixture
def options(cluster, topic):
    return f"url '{cluster.node(1).url}', subscribe '{topic}'"


@pytest.fixture
def sql(spark):
    """Run a statement; tables are dropped afterwards."""
    made = []

    def run(text):
        words = text.split()
        if words[0] == "CREATE":
            kind = "TABLE" if "TABLE" in words[:3] else "VIEW"
            made.append(f"DROP {kind} {words[words.index(kind) + 1]}")
        return spark.sql(text)

    yield run
    for statement in reversed(made):
        spark.sql(statement)


@pytest.mark.parametrize(
    "clauses",
    [
        "",
        "COMMENT 'clicks of today'",
        "TBLPROPERTIES ('team' = 'web', 'mergeSchema' = 'true')",
        "COMMENT 'c' TBLPROPERTIES ('team' = 'web')",
    ],
)
def test_a_table_is_made_and_read_with_the_options_of_the_query(sql, options, clauses):
    sql(f"CREATE TABLE tabled_clicks USING milena OPTIONS ({options}) {clauses}")
    given = options.replace("url ", "'url' = ").replace("subscribe ", "'subscribe' = ")
    assert sql(f"SELECT * FROM tabled_clicks WITH ({given})").count() == 30
    with pytest.raises(PySparkException, match="Spark does not hand a data source the OPTIONS"):
        sql("SELECT * FROM tabled_clicks").collect()
    sql(f"CREATE VIEW tabled_view AS SELECT * FROM tabled_clicks WITH ({given})")
    assert sql("SELECT count(*) AS n FROM tabled_view").first().n == 30


def test_wrong_options_of_a_table_are_refused_when_it_is_made(spark, options):
    with pytest.raises(PySparkException, match="minpartition: no such option"):
        spark.sql(f"CREATE TABLE wrong USING milena OPTIONS ({options}, minPartition '4')")


def test_a_temporary_view_reads_a_topic(sql, options):
    sql(
        f"CREATE TEMPORARY VIEW tabled_temporary USING milena OPTIONS ({options}, MINPARTITIONS '3')"
    )
    rows = sql("SELECT partition, max(offset) AS last FROM tabled_temporary GROUP BY partition")
    assert [tuple(row) for row in rows.collect()] == [(0, 29)]


def test_a_temporary_view_with_columns_writes_to_a_topic(sql, spark, cluster):
    target = create_topic(cluster.node(1), "tabled-target")
    url = cluster.node(1).url
    sql(
        "CREATE TEMPORARY VIEW tabled_sink (key STRING, value STRING) USING milena "
        f"OPTIONS (url '{url}', topic '{target}')"
    )
    sql("INSERT INTO tabled_sink VALUES ('k', 'v'), ('k', 'w')")
    written = spark.read.format("milena").options(url=url, subscribe=target).load()
    assert sorted(bytes(row.value) for row in written.collect()) == [b"v", b"w"]


@pytest.mark.parametrize("mode", [None, "ignore", "errorifexists", "overwrite"])
def test_a_write_in_another_mode_than_append_is_refused(spark, cluster, topic, mode):
    rows = spark.createDataFrame([("v",)], "value string")
    writer = rows.write.format("milena").options(url=cluster.node(1).url, topic=topic)
    with pytest.raises(PySparkException) as caught:
        (writer if mode is None else writer.mode(mode)).save()
    expected = "a log is only appended to; say mode" if mode == "overwrite" else '"Append"'
    assert expected in str(caught.value)
