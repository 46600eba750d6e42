"""Options of the Spark source and sink: what is taken, what wins, what is refused and why."""

import pytest

from milena.records import TopicPartition
from spark_ext.errors import OffsetError, OptionError
from spark_ext.options.bounds import (
    Edge,
    GlobalTimestamp,
    NoMatch,
    SpecificOffsets,
    SpecificTimestamps,
)
from spark_ext.options.ignored import WITHOUT_EFFECT, warn_ignored
from spark_ext.options.parsing import (
    parse_load_options,
    parse_read_options,
    parse_stream_options,
    parse_write_options,
    parse_write_stream_options,
)
from spark_ext.options.selection import (
    Assign,
    Subscribe,
    SubscribePattern,
    partitions_of,
    topics_of,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(**options):
    """Keyword arguments with ``_`` for ``.``, on top of what is required."""
    given = {"url": "http://a:1", "subscribe": "t"}
    given.update({name.replace("_", "."): value for name, value in options.items()})
    return parse_read_options({name: v for name, v in given.items() if v is not None})


def refusal(**options) -> str:
    with pytest.raises(OptionError) as caught:
        parse(**options)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_defaults_are_those_of_the_kafka_source():
    options = parse()
    assert options.fetching.urls == ("http://a:1",)
    assert options.selection == Subscribe(("t",))
    assert (options.start, options.end) == (Edge.EARLIEST, Edge.LATEST)
    assert options.on_no_match is NoMatch.ERROR
    assert options.fetching.fail_on_data_loss
    assert not options.include_headers
    assert options.fetching.poll_timeout_ms == 120_000
    assert (options.retries, options.retry_interval_ms) == (3, 10)
    assert (options.partitions_min, options.records_per_partition_max) == (None, None)
    assert options.target_records_per_task == 1_000_000


def test_names_are_taken_in_any_case():
    options = parse_read_options(
        {"KAFKA.BOOTSTRAP.servers": "a:1, b:2", "SubscribePATTERN": "x.*", "INCLUDEHEADERS": "True"}
    )
    assert options.fetching.urls == ("a:1", "b:2")
    assert options.selection == SubscribePattern("x.*")
    assert options.include_headers


def test_options_of_streams_and_groups_are_accepted():
    parse(maxOffsetsPerTrigger="5", groupIdPrefix="g", kafka_group_id="g")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": None}, "kafka.bootstrap.servers: required"),
        ({"kafka_bootstrap_servers": "b:1"}, "give one of the two"),
        ({"url": " , "}, "url: give the URL"),
        ({"subscribe": None}, "give one of subscribe, subscribePattern, assign"),
        ({"assign": '{"t":[0]}'}, "subscribe, assign: give only one"),
        ({"subscribe": " ,"}, "subscribe: give one topic"),
        ({"minPartitions": "0"}, "minPartitions: expected a number of 1 or more, got '0'"),
        ({"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition: expected a number"),
        ({"fetchOffset_numRetries": "-1"}, "fetchOffset.numRetries: expected a number of 0"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss: expected true or false"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({"kafka.bootstrap.server": "a:1"}, "did you mean kafka.bootstrap.servers?"),
        ({"kafka.bootstrap.timeout": "1"}, "would configure a Kafka client"),
        ({"path": "t"}, "path: not possible"),
        ({"kafka_auto_offset_reset": "latest"}, "say where to begin with startingOffsets"),
        ({"kafka_enable_auto_commit": "true"}, "commits no offsets"),
        ({"kafka_isolation_level": "read_uncommitted"}, "committed records are read, always"),
        ({"kafka_client_id": "x"}, "say milena.clientId"),
        ({"kafka_key_deserializer": "x"}, "always binary"),
        ({"kafka_value_serializer": "x"}, "serialize them in the query"),
        ({"kafka_interceptor_classes": "x"}, "interceptors"),
        ({"kafka_ssl_truststore_location": "x"}, "named by milena.ca, milena.cert and milena.key"),
        ({"kafka_max_poll_record": "5"}, "there is none"),
        ({"kafka_enable_auto_commit": "maybe"}, "commits no offsets"),
        ({"paths": '["t"]'}, "paths: not possible: topics are named by subscribe"),
        ({"maxOffsetsPerTrigger": "x"}, "maxOffsetsPerTrigger: expected a number"),
        ({"minOffsetsPerTrigger": "0"}, "minOffsetsPerTrigger: expected a number"),
        ({"maxBytesPerTrigger": "1k"}, "maxBytesPerTrigger: expected a number"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: expected a time"),
        ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "6 is more than 5"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "expected error or latest"),
    ],
)
def test_a_bad_option_is_one_line_that_names_it(options, words):
    assert words in refusal(**options)


# -- what changes nothing --------------------------------------------------------------------------

PARSERS = {
    "read": (parse_read_options, {"subscribe": "t"}),
    "stream": (parse_stream_options, {"subscribe": "t"}),
    "load": (parse_load_options, {"subscribe": "t"}),
    "write": (parse_write_options, {"topic": "t"}),
    "write a stream": (parse_write_stream_options, {"topic": "t", "transactionalId": "x"}),
}
CHANGES_NOTHING = {
    **dict.fromkeys(WITHOUT_EFFECT, "1"),
    "kafka.isolation.level": "read_committed",
    "kafka.enable.auto.commit": "FALSE",
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
}


@pytest.mark.parametrize("name", CHANGES_NOTHING)
@pytest.mark.parametrize("way", PARSERS)
def test_an_option_that_changes_nothing_is_taken_and_told_once(way, name, caplog):
    parse_options, required = PARSERS[way]
    wanted = parse_options({"url": "a:1", **required})
    warn_ignored.cache_clear()
    for _ in range(2):
        found = parse_options({"url": "a:1", **required, name.upper(): CHANGES_NOTHING[name]})
        if (way, name) != ("write a stream", "checkpointlocation"):
            assert found == wanted
    is_of_streams = way == "write a stream" and name in ("checkpointlocation", "queryname")
    assert len(caplog.messages) == (0 if is_of_streams else 1)
    assert all(line.startswith(f"option {name} is ignored: ") for line in caplog.messages)


# -- tables ----------------------------------------------------------------------------------------

TABLE = {"provider": "milena", "owner": "root", "location": "file:/t", "path": "file:/t", "p": "q"}
"""What Spark adds to the options of CREATE TABLE: its own properties, and those of TBLPROPERTIES."""


@pytest.mark.parametrize("way", PARSERS)
def test_the_properties_of_a_table_are_no_options(way):
    parse_options, required = PARSERS[way]
    options = {"url": "a:1", **required}
    prefixed = {f"option.{name}": value for name, value in options.items()}
    assert parse_options({**TABLE, **options, **prefixed}) == parse_options(options)
    with pytest.raises(OptionError, match="minpartition: no such option"):
        parse_options({**TABLE, **prefixed, "option.minPartition": "4"})
    with pytest.raises(
        OptionError, match="Spark does not hand a data source the OPTIONS of CREATE"
    ):
        parse_options(TABLE)


@pytest.mark.parametrize("way", PARSERS)
def test_the_options_of_a_table_are_missed_where_spark_keeps_them(way):
    with pytest.raises(OptionError, match=r"SELECT … FROM t WITH \(url = '…', subscribe = '…'\)"):
        PARSERS[way][0]({})


# -- ends ------------------------------------------------------------------------------------------


def test_offsets_in_json_name_places_and_edges():
    options = parse(
        startingOffsets='{"t": {"0": 23, "1": -2}}', endingOffsets='{"t": {"0": 99, "1": -1}}'
    )
    assert options.start == SpecificOffsets({T0: 23, T1: Edge.EARLIEST})
    assert options.end == SpecificOffsets({T0: 99, T1: Edge.LATEST}, option="endingOffsets")


def test_a_starting_timestamp_wins_over_timestamps_and_they_over_offsets():
    by_partition = '{"t": {"0": 7}}'
    every = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": by_partition,
        "startingOffsets": "earliest",
    }
    assert parse(**every).start == GlobalTimestamp(5)
    del every["startingTimestamp"]
    assert parse(**every).start == SpecificTimestamps({T0: 7})


def test_an_ending_timestamp_wins_over_timestamps_and_they_over_offsets():
    every = {
        "endingTimestamp": "5",
        "endingOffsetsByTimestamp": '{"t": {"0": 7}}',
        "endingOffsets": "latest",
    }
    assert parse(**every).end == GlobalTimestamp(5, option="endingTimestamp")
    del every["endingTimestamp"]
    assert parse(**every).end == SpecificTimestamps({T0: 7}, option="endingOffsetsByTimestamp")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets: latest is not possible"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, "-1 (latest) is not possible"),
        ({"endingOffsets": "earliest"}, "endingOffsets: earliest is not possible"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "-2 (earliest) is not possible"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3 is not an offset"),
        ({"startingOffsets": "first"}, "startingOffsets: expected earliest, or JSON such as"),
        ({"endingOffsets": "last"}, "endingOffsets: expected latest, or JSON such as"),
        ({"startingOffsets": "[1]"}, "or JSON such as"),
        ({"startingOffsets": '{"t":[0]}'}, "'t' has [0]"),
        ({"startingOffsets": '{"t":{"x":0}}'}, "'x' is not a partition of 't'"),
        ({"startingOffsets": '{"t":{"0":"a"}}'}, 't-0 has "a", not a number'),
        ({"startingOffsets": '{"t":{"0":true}}'}, "not a number"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: expected a time in ms"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":-5}}'}, "-5 is not a time"),
        (
            {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":1,"1":2}}'},
            "only one of them names t-1",
        ),
        (
            {"startingOffsets": '{"t":{"0":5}}', "endingOffsets": '{"t":{"0":4}}'},
            "t-0 begins at 5 and ends at 4",
        ),
    ],
)
def test_a_bad_end_is_one_line_that_names_it(options, words):
    assert words in refusal(**options)


# -- streams ---------------------------------------------------------------------------------------


def stream(**options):
    return parse_stream_options({"url": "http://a:1", "subscribe": "t", **options})


def test_a_stream_begins_at_the_latest_and_has_no_limits_by_default():
    options = stream()
    assert (options.read.start, options.read.end) == (Edge.LATEST, Edge.LATEST)
    assert (options.offsets_max, options.offsets_min) == (None, None)
    assert options.trigger_delay_ms_max == 15 * 60_000


def test_a_stream_may_begin_at_either_end():
    assert stream(startingOffsets="latest").read.start is Edge.LATEST
    assert stream(startingOffsets="earliest").read.start is Edge.EARLIEST
    named = stream(startingOffsets='{"t": {"0": -1, "1": -2}}').read.start
    assert named == SpecificOffsets({T0: Edge.LATEST, T1: Edge.EARLIEST})


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250", 250), ("250ms", 250), ("5s", 5_000), ("2 min", 120_000), ("15M", 900_000)],
)
def test_a_delay_is_told_as_spark_tells_times(text, ms):
    assert stream(maxTriggerDelay=text).trigger_delay_ms_max == ms


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: not possible in a stream, which does not"),
        ({"endingTimestamp": "5"}, "endingTimestamp: not possible in a stream"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: expected a number of 1 or more"),
        ({"minOffsetsPerTrigger": "some"}, "minOffsetsPerTrigger: expected a number of 1 or more"),
        (
            {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger and maxOffsetsPerTrigger: 6 is more than 5",
        ),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay: expected a time such as 500ms, 30s"),
        ({"maxTriggerDelay": "5 weeks"}, "maxTriggerDelay: expected a time"),
    ],
)
def test_a_bad_option_of_a_stream_is_one_line(options, words):
    with pytest.raises(OptionError) as caught:
        stream(**options)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_at_load_options_need_to_fit_either_a_batch_or_a_stream():
    required = {"url": "a", "subscribe": "t"}
    stream = parse_load_options({**required, "startingOffsets": "latest", "includeHeaders": "true"})
    assert stream.include_headers
    assert not parse_load_options({**required, "endingOffsets": "latest"}).include_headers
    with pytest.raises(OptionError) as caught:
        parse_load_options({**required, "minPartition": "1"})
    assert caught.value.message == "minpartition: no such option; did you mean minPartitions?"
    with pytest.raises(OptionError) as caught:
        parse_load_options({**required, "startingOffsets": "latest", "endingTimestamp": "5"})
    assert caught.value.message.startswith(
        "startingOffsets: latest is not possible in a batch query; and in a stream, endingTimestamp"
    )
    with pytest.raises(OptionError) as caught:
        parse_load_options({**required, "startingOffsets": "latest", "maxTriggerDelay": "soon"})
    assert caught.value.message.startswith("maxTriggerDelay: expected a time such as")


# -- selection -------------------------------------------------------------------------------------


def test_subscribe_takes_names_once_and_trims_them():
    assert parse(subscribe=" a, b,a ").selection == Subscribe(("a", "b"))


def test_assign_takes_partitions():
    options = parse(subscribe=None, assign='{"b": [1, 0], "a": [2]}')
    assert options.selection == Assign((("a", 2), ("b", 0), ("b", 1)))


@pytest.mark.parametrize("text", ["", "t", "{}", '{"t": 1}', '{"t": []}', '{"t": [-1]}'])
def test_assign_refuses_what_is_no_list_of_partitions(text):
    assert 'expected JSON such as {"orders": [0, 1]}' in refusal(subscribe=None, assign=text)


@pytest.mark.parametrize("text", [" ", "("])
def test_a_pattern_must_be_a_regular_expression(text):
    assert refusal(subscribe=None, subscribePattern=text).startswith("subscribePattern")


def test_a_pattern_matches_whole_names_and_may_match_none():
    existing = ["logs-a", "logs-b", "old-logs-c"]
    assert topics_of(SubscribePattern("logs-."), existing) == ("logs-a", "logs-b")
    assert topics_of(SubscribePattern("x"), existing) == ()


def test_a_topic_that_is_named_must_exist():
    with pytest.raises(OffsetError, match="no such topic: b, c"):
        topics_of(Subscribe(("c", "a", "b")), ["a"])


def test_an_assigned_partition_must_exist():
    with pytest.raises(OffsetError, match="no such partition: t-1; t has 1"):
        partitions_of(Assign((T0, T1)), {"t": 1})
    assert partitions_of(Assign((T1,)), {"t": 2}) == (T1,)


# -- sink ------------------------------------------------------------------------------------------


def test_a_write_needs_servers_and_takes_a_topic():
    options = parse_write_options({"kafka.bootstrap.servers": "a:1", "Topic": " t "})
    assert (options.urls, options.topic) == (("a:1",), "t")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "kafka.bootstrap.servers: required"),
        ({"url": "a", "topic": " "}, "topic: give the name"),
        ({"url": "a", "subscribe": "t"}, "subscribe: not possible: .* by topic when writing"),
        ({"url": "a", "startingOffsets": "earliest"}, "startingoffsets: .*only a read has it"),
        ({"url": "a", "kafkaConsumer.pollTimeoutMs": "1"}, "kafkaconsumer.*only a read has it"),
        ({"url": "a", "kafka.acks": "1"}, "acknowledged by every in-sync replica"),
        ({"url": "a", "kafka.transactional.id": "t"}, "the name that transactionalId says"),
        ({"url": "a", "kafka.compression.type": "gzip"}, "say compression"),
        ({"url": "a", "batchId": "7"}, "batchId: give transactionalId too"),
        ({"url": "a", "transactionalId": "i", "batchId": "-1"}, "batchId: expected a number of 0"),
        (
            {"url": "a", "transactionalId": "i", "batchId": str((1 << 63) - 1)},
            "batchId: .* at most",
        ),
        ({"url": "a", "transactionalId": ""}, "transactionalId: expected 1 to 200 printable"),
        ({"url": "a", "transactionalId": "a\nb"}, "transactionalId: expected 1 to 200 printable"),
        (
            {"url": "a", "transactionalId": "i", "compression": "snappy"},
            "compression: expected none",
        ),
    ],
)
def test_a_bad_option_of_a_write_is_one_line(options, words):
    with pytest.raises(OptionError, match=words):
        parse_write_options(options)


@pytest.mark.parametrize("name", ["topic", "transactionalId", "batchId", "compression"])
def test_an_option_of_a_write_is_refused_with_the_reason_when_reading(name):
    with pytest.raises(OptionError, match=f"{name.lower()}: not possible: .*(write|writing)"):
        parse_read_options({"url": "a", "subscribe": "t", name: "x"})


def test_a_batch_may_be_written_once():
    assert parse_write_options({"url": "a"}).transactional_id is None
    options = parse_write_options({"url": "a", "transactionalId": "nightly", "batchId": "0"})
    assert (options.transactional_id, options.batch_id) == ("nightly", 0)
    last = str((1 << 63) - 2)  # the group commits the next number, which has 63 bits at most
    given = {"url": "a", "transactionalId": "nightly", "batchId": last}
    assert parse_write_options(given).batch_id == int(last)


def test_a_stream_is_named_after_its_checkpoint_unless_it_has_a_name():
    given = {"url": "a", "checkpointLocation": "/c/orders", "queryName": "q"}
    assert parse_write_stream_options(given).transactional_id == "spark:/c/orders"
    named = parse_write_stream_options({**given, "transactionalId": "orders"})
    assert named.transactional_id == "orders"
    assert parse_write_stream_options({"url": "a", "transactionalId": "orders"}) == named


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "transactionalId: required where checkpointLocation is not given as an option"),
        ({"checkpointLocation": "c" * 200}, "checkpointLocation: .*; give transactionalId"),
        ({"checkpointLocation": "c", "transactionalId": ""}, "transactionalId: expected 1 to 200"),
        ({"transactionalId": "i", "batchId": "1"}, "Spark numbers the batches of a stream"),
        ({"transactionalId": "i", "compression": "best"}, "compression: expected none"),
        ({"transactionalId": "i", "transactionalID2": "j"}, "did you mean transactionalId?"),
    ],
)
def test_a_bad_option_of_a_written_stream_is_one_line(options, words):
    with pytest.raises(OptionError, match=words):
        parse_write_stream_options({"url": "a", **options})
