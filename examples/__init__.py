"""Examples: Spark jobs that compute statistics, alerts, sessions and prices from topics.

They run in a checkout, and are no part of an installation. Copy one to start a job of your own. A module here is a
command. The packages do the work; each imports only those below, and ``spark_ext``:

    events             runs a job on a stream of events
    weblog    market   events, and statistics of them: pure functions of DataFrames
    picture            draws results
"""
