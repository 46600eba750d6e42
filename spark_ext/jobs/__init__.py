"""Jobs for ``spark-submit`` or plain Python, built on the data source ``milena``.

A module here is a command, with its options and exit codes; what it does is in a room. Those above know those below:

    auditing  replaying   what an archive's jobs say and do
    events                how a job on a stream of events is run
    archiving             the archive: files, their manifest, and the topics that it is made of
    weblog    market      events, and what is counted of them: pure functions of DataFrames
    running               what all have: the cluster, the Spark session, the end of a command line
"""
