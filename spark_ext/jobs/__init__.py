"""Jobs for ``spark-submit`` or plain Python, built on the data source ``milena``.

A module here is a command, with its options and exit codes. The packages do the work; each imports only those below:

    auditing  replaying   the jobs that read an archive
    archiving             the archive: its files, their manifest, and the topics that it is made from
    running               shared by all jobs: the cluster, the Spark session, the exit of a command
"""
