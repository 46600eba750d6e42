"""The second interface of a node: Kafka's binary protocol, off unless ``kafka_listen`` is set.

``wire`` turns frames into messages and back. ``connection`` keeps the order of requests and bounds them. ``apis`` has
one module per group of API keys, and the table of all keys (``apis.registry``). The records themselves stay in Kafka's
own batches (``batches``). ``errors`` maps typed errors to Kafka's codes.
"""
