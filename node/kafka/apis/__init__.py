"""The APIs of the interface: one module per group of keys, and the table of all of them (``registry``).

A module has a handler for each key, under its row (``serves``), and lists them in ``APIS``. A handler takes the node's
services (``KafkaServices``) and one request (``KafkaCall``), and returns the body of the response. Expected errors are
codes in it. A message that is not on the path of records needs no codec of its own: ``KafkaCall.message`` decodes it,
and ``KafkaCall.answer`` encodes the response.
"""
