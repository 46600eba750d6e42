"""v3: the table of endpoints."""

from functools import partial

from http_api.access.needs import IN_ANSWER, IN_REQUEST, KNOWN, on_cluster, on_topic
from http_api.describing.error_sets import (
    CHANGE_ERRORS,
    CREATE_TOPIC_ERRORS,
    LEADER_ERRORS,
    PARTITION_ERRORS,
    TOPIC_ERRORS,
)
from http_api.protocol.errors import InvalidFieldError, ResourceNotFoundError
from http_api.records.produce_head import ACKS, TIMEOUT_MS
from http_api.records.transaction_header import TRANSACTION
from http_api.serving.endpoint import Body, Route, Tag, json_content, ok
from http_api.shapes import requests, v3, v3_records
from http_api.v3 import (
    broker_configs,
    clusters,
    configs,
    partitions,
    reassignments,
    record_batch,
    records,
    topics,
)
from http_api.v3.acl_endpoints import ACL_ROUTES
from http_api.v3.group_endpoints import GROUP_ROUTES
from http_api.v3.rows import AUTHORIZED_OPERATIONS, CLUSTER, DONE, in_v3
from milena.model import errors as e
from milena.model.access import Operation

_TOPIC = f"{CLUSTER}/topics/{{topic}}"
_PARTITION = f"{_TOPIC}/partitions/{{partition}}"


_cluster_route = partial(Route, tag=Tag.V3_CLUSTERS)
_topic_route = partial(Route, tag=Tag.V3_TOPICS)
_config_route = partial(Route, tag=Tag.V3_CONFIGS)
_partition_route = partial(Route, tag=Tag.V3_PARTITIONS)

_CLUSTER_ROUTES = (
    _cluster_route(
        "GET /v3",
        "v3Root",
        clusters.root,
        "Where to begin",
        ok(v3.ROOT, "A link to the cluster"),
        access=KNOWN,
    ),
    _cluster_route(
        "GET /v3/clusters",
        "v3ListClusters",
        clusters.list_clusters,
        "The cluster, as a list",
        ok(v3.CLUSTERS, "The only one there is"),
        own_params=(AUTHORIZED_OPERATIONS,),
        access=KNOWN,
        errors=(e.NotReadyError,),
    ),
    _cluster_route(
        f"GET {CLUSTER}",
        "v3GetCluster",
        clusters.get_cluster,
        "The cluster",
        ok(v3.CLUSTER, "The cluster"),
        own_params=(AUTHORIZED_OPERATIONS,),
        access=KNOWN,
    ),
    _cluster_route(
        f"GET {CLUSTER}/brokers",
        "v3ListBrokers",
        clusters.list_brokers,
        "All brokers",
        ok(v3.BROKERS, "All that are registered, alive or not"),
        access=KNOWN,
        is_current=True,
    ),
    _cluster_route(
        f"GET {CLUSTER}/brokers/{{broker}}",
        "v3GetBroker",
        clusters.get_broker,
        "A broker",
        ok(v3.BROKER, "The broker"),
        access=KNOWN,
        is_current=True,
        errors=(e.BrokerNotFoundError,),
    ),
    _cluster_route(
        f"DELETE {CLUSTER}/brokers/{{broker}}",
        "v3DeleteBroker",
        clusters.delete_broker,
        "Forget a broker that is gone for good",
        DONE,
        access=on_cluster(Operation.ALTER),
        description="Refused while it is alive, holds replicas or is a voter of the metadata quorum.",
        errors=(e.BrokerNotFoundError, e.BrokerInUseError, *CHANGE_ERRORS),
    ),
    _cluster_route(
        f"GET {CLUSTER}/brokers/{{broker}}/partition-replicas",
        "v3ListBrokerReplicas",
        partitions.list_broker_replicas,
        "Replicas that a broker holds",
        ok(v3.REPLICAS, "The replicas, by topic and partition"),
        access=IN_ANSWER,
        is_current=True,
        errors=(e.BrokerNotFoundError,),
    ),
)

_TOPIC_ROUTES = (
    _topic_route(
        f"GET {CLUSTER}/topics",
        "v3ListTopics",
        topics.list_topics,
        "All topics",
        ok(v3.TOPICS, "The topics, by name"),
        own_params=(AUTHORIZED_OPERATIONS,),
        access=IN_ANSWER,
        is_current=True,
    ),
    _topic_route(
        f"POST {CLUSTER}/topics",
        "v3CreateTopic",
        topics.create_topic,
        "Create a topic",
        (
            *ok(v3.TOPIC, "It could be created (`validate_only`)"),
            *ok(v3.TOPIC, "It is there, on this node and soon on all", "Location", status=201),
        ),
        access=IN_REQUEST,
        body=Body(content=json_content(requests.NEW_TOPIC_V3)),
        errors=CREATE_TOPIC_ERRORS,
    ),
    _topic_route(
        f"GET {_TOPIC}",
        "v3GetTopic",
        topics.get_topic,
        "A topic",
        ok(v3.TOPIC, "The topic"),
        own_params=(AUTHORIZED_OPERATIONS,),
        access=on_topic(Operation.DESCRIBE),
        is_current=True,
        errors=TOPIC_ERRORS,
    ),
    _topic_route(
        f"PATCH {_TOPIC}",
        "v3UpdateTopic",
        topics.patch_topic,
        "Give a topic more partitions",
        ok(v3.TOPIC, "The topic, which has that many"),
        access=on_topic(Operation.ALTER),
        description=(
            "New partitions are placed as those of a new topic. Records of a key that were written before stay where "
            "they are, later ones may go to another partition."
        ),
        body=Body(content=json_content(requests.TOPIC_CHANGE)),
        errors=(
            *TOPIC_ERRORS,
            InvalidFieldError,
            e.InvalidReplicationError,
            e.TooManyReplicasError,
            e.StaleVersionError,
            *CHANGE_ERRORS,
        ),
    ),
    _topic_route(
        f"DELETE {_TOPIC}",
        "v3DeleteTopic",
        topics.delete_topic,
        "Delete a topic with its records",
        DONE,
        access=on_topic(Operation.DELETE),
        errors=(*TOPIC_ERRORS, *CHANGE_ERRORS),
    ),
)

_RECORD_ROUTES = (
    Route(
        f"POST {_TOPIC}/records",
        "v3ProduceRecords",
        records.produce,
        "Append records, with a receipt for each while the request is open",
        ok(v3_records.RECEIPT, "A receipt a record, one object after the other, in their order"),
        own_params=(ACKS.param, TIMEOUT_MS.param, TRANSACTION),
        access=on_topic(Operation.WRITE),
        tag=Tag.RECORDS,
        description=(
            "The body holds one object after the other, for as long as the client likes. What is wrong with a record "
            "is in its receipt; the answer is 200 once there is one."
        ),
        body=Body(content=json_content(v3_records.RECORD)),
        errors=(InvalidFieldError,),
    ),
    Route(
        f"POST {_TOPIC}/records:batch",
        "v3ProduceBatch",
        record_batch.produce_batch,
        "Append some records, each named by an id",
        ok(
            v3_records.BATCH_RECEIPTS,
            "What was taken and what was not, each in the order of the request",
            status=207,
        ),
        own_params=(ACKS.param, TIMEOUT_MS.param, TRANSACTION),
        access=on_topic(Operation.WRITE),
        tag=Tag.RECORDS,
        description=f"1 to {record_batch.ENTRIES_MAX} records. What is wrong with one does not stop the others.",
        body=Body(content=json_content(v3_records.BATCH)),
        errors=(InvalidFieldError, e.InvalidRecordError),
    ),
)

_BROKER_CONFIG_ROUTES = (
    _config_route(
        f"GET {CLUSTER}/brokers/{{broker}}/configs",
        "v3ListBrokerConfigs",
        broker_configs.list_configs,
        "Configs of a broker",
        ok(v3.BROKER_CONFIGS, "What its topics have that set nothing else"),
        access=on_cluster(Operation.DESCRIBE_CONFIGS),
        is_current=True,
        description="With `-` as the broker: those of all brokers.",
        errors=(e.BrokerNotFoundError,),
    ),
    _config_route(
        f"GET {CLUSTER}/brokers/{{broker}}/configs/{{config}}",
        "v3GetBrokerConfig",
        broker_configs.get_config,
        "A config of a broker",
        ok(v3.BROKER_CONFIG, "The config"),
        access=on_cluster(Operation.DESCRIBE_CONFIGS),
        is_current=True,
        errors=(e.BrokerNotFoundError, e.ConfigNotFoundError),
    ),
    _config_route(
        f"GET {CLUSTER}/broker-configs",
        "v3ListClusterConfigs",
        broker_configs.list_cluster_configs,
        "Configs that all brokers have",
        ok(v3.CLUSTER_CONFIGS, "What topics have that set nothing else"),
        access=on_cluster(Operation.DESCRIBE_CONFIGS),
    ),
    _config_route(
        f"GET {CLUSTER}/broker-configs/{{config}}",
        "v3GetClusterConfig",
        broker_configs.get_cluster_config,
        "A config that all brokers have",
        ok(v3.CLUSTER_CONFIG, "The config"),
        access=on_cluster(Operation.DESCRIBE_CONFIGS),
        errors=(e.ConfigNotFoundError,),
    ),
)

_CHANGE_CONFIG_ERRORS = (
    *TOPIC_ERRORS,
    e.InvalidConfigError,
    e.TransactionsPendingError,
    InvalidFieldError,
    *CHANGE_ERRORS,
)
_CONFIG_ROUTES = (
    _config_route(
        f"GET {_TOPIC}/configs",
        "v3ListTopicConfigs",
        configs.list_configs,
        "Configs of a topic",
        ok(v3.CONFIGS, "All that are in force"),
        access=on_topic(Operation.DESCRIBE_CONFIGS, is_filtered=True),
        is_current=True,
        description="With `-` as the topic: those of all topics.",
        errors=TOPIC_ERRORS,
    ),
    _config_route(
        f"POST {_TOPIC}/configs:alter",
        "v3AlterTopicConfigs",
        configs.alter_configs,
        "Change several configs at once",
        (
            *DONE,
            *ok(
                v3.CONFIG_FAILURES,
                "With `-` as the topic: topics that could not be changed; the others are",
                status=207,
            ),
        ),
        access=on_topic(Operation.ALTER_CONFIGS, is_filtered=True),
        description=(
            'With `-` as the topic: of several topics, `{"data": [{"topic_name", "configs": [{"name", '
            '"value"}]}]}`. The caller must have the right for each of them; what else is wrong with one does not '
            "stop the others."
        ),
        body=Body(content=json_content(requests.ANY_CONFIG_CHANGES)),
        errors=_CHANGE_CONFIG_ERRORS,
    ),
    _config_route(
        f"GET {_TOPIC}/configs/{{config}}",
        "v3GetTopicConfig",
        configs.get_config,
        "A config of a topic",
        ok(v3.CONFIG, "The config in force"),
        access=on_topic(Operation.DESCRIBE_CONFIGS),
        is_current=True,
        errors=(*TOPIC_ERRORS, e.ConfigNotFoundError),
    ),
    _config_route(
        f"PUT {_TOPIC}/configs/{{config}}",
        "v3SetTopicConfig",
        configs.put_config,
        "Set a config",
        DONE,
        access=on_topic(Operation.ALTER_CONFIGS),
        body=Body(content=json_content(requests.CONFIG_VALUE)),
        errors=_CHANGE_CONFIG_ERRORS,
    ),
    _config_route(
        f"DELETE {_TOPIC}/configs/{{config}}",
        "v3ResetTopicConfig",
        configs.delete_config,
        "Reset a config to its default",
        DONE,
        access=on_topic(Operation.ALTER_CONFIGS),
        errors=(*TOPIC_ERRORS, e.InvalidConfigError, e.TransactionsPendingError, *CHANGE_ERRORS),
    ),
)

_PARTITION_ROUTES = (
    _partition_route(
        f"GET {_TOPIC}/partitions",
        "v3ListPartitions",
        partitions.list_partitions,
        "Partitions of a topic",
        ok(v3.PARTITIONS, "The partitions, by number"),
        access=on_topic(Operation.DESCRIBE),
        is_current=True,
        errors=TOPIC_ERRORS,
    ),
    _partition_route(
        f"GET {_PARTITION}",
        "v3GetPartition",
        partitions.get_partition,
        "A partition",
        ok(v3.PARTITION, "The partition"),
        access=on_topic(Operation.DESCRIBE),
        errors=PARTITION_ERRORS,
    ),
    _partition_route(
        f"GET {_PARTITION}/offset",
        "v3GetPartitionOffsets",
        partitions.get_offset,
        "A partition with its readable offsets",
        ok(v3.PARTITION_WITH_OFFSETS, "The partition and its readable range"),
        own_params=(partitions.OFFSET_TYPE.param,),
        access=on_topic(Operation.DESCRIBE),
        errors=(*PARTITION_ERRORS, *LEADER_ERRORS),
    ),
    _partition_route(
        f"GET {_PARTITION}/reassignment",
        "v3GetReassignment",
        reassignments.get_reassignments,
        "Where a partition is moving",
        ok(
            {"anyOf": [v3.REASSIGNMENT, v3.REASSIGNMENTS]},
            "The move; a list of them where `-` stands for all partitions",
        ),
        access=on_topic(Operation.DESCRIBE, is_filtered=True),
        is_current=True,
        description="With `-` as the partition: moves of the whole topic; as the topic, too: all moves.",
        errors=(*PARTITION_ERRORS, ResourceNotFoundError),
    ),
    _partition_route(
        f"GET {_PARTITION}/replicas",
        "v3ListReplicas",
        partitions.list_replicas,
        "Replicas of a partition",
        ok(v3.REPLICAS, "The replicas, the preferred leader first"),
        access=on_topic(Operation.DESCRIBE),
        errors=PARTITION_ERRORS,
    ),
    _partition_route(
        f"GET {_PARTITION}/replicas/{{broker}}",
        "v3GetReplica",
        partitions.get_replica,
        "A replica",
        ok(v3.REPLICA, "The replica"),
        access=on_topic(Operation.DESCRIBE),
        errors=(*PARTITION_ERRORS, ResourceNotFoundError),
    ),
)

V3_ROUTES = in_v3(
    *_CLUSTER_ROUTES,
    *_TOPIC_ROUTES,
    *_RECORD_ROUTES,
    *_CONFIG_ROUTES,
    *_BROKER_CONFIG_ROUTES,
    *_PARTITION_ROUTES,
    *GROUP_ROUTES,
    *ACL_ROUTES,
)
