"""Jobs for ``spark-submit`` or plain Python, built on the data source ``milena``.

A module here is a command, with its options and exit codes. The packages do the work; each imports only those below:

    auditing  replaying   the jobs that read an archive
    events                runs a job on a stream of events
    archiving             the archive: its files, their manifest, and the topics that it is made from
    weblog    market      events, and statistics of them: pure functions of DataFrames
    running               shared by all jobs: the cluster, the Spark session, the exit of a command
"""
