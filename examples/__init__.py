"""Examples: Spark jobs that compute statistics, alerts, sessions and prices from topics.

They run in a checkout, and are not installed. Copy one to start your own job. A module here is a command. The packages
do the work; each imports only those below, and ``spark_ext``:

    events             runs a job on a stream of events
    weblog    market   parse events, and compute statistics: pure functions of DataFrames
    picture            draws results
"""
