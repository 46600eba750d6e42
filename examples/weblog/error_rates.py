"""Find windows of time in which a site, or one of its paths, answered too many requests with errors.

A site is a topic of access-log lines. The functions work on a stream or a table of events (``events.watermark``) with
the columns ``topic``, ``time``, ``path`` and ``status``.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """The rule for an alert: ``requests_min`` requests or more in a window, of which a share of ``rate_min`` failed.

    A response with ``status_min`` or above is an error. With ``is_by_path`` each path is judged separately. A request
    that is not HTTP has no path, and does not count then.
    """

    window_s: int
    rate_min: float
    requests_min: int
    status_min: int
    is_by_path: bool


def alerts_of(events: DataFrame, rule: AlertRule) -> DataFrame:
    """Return a row per alert; the window is [window_start, window_end). ``path`` is null unless the rule is by path.

    Columns: site, path string; window_start, window_end timestamp; requests, errors bigint; rate double.
    """
    place = ["topic", "path"] if rule.is_by_path else ["topic"]
    judged = events.where(sf.col("path").isNotNull()) if rule.is_by_path else events
    counted = judged.groupBy(sf.window("time", f"{rule.window_s} seconds"), *place).agg(
        sf.count("*").alias("requests"),
        sf.count_if(sf.col("status") >= rule.status_min).alias("errors"),
    )
    rate = sf.col("errors") / sf.col("requests")
    is_alert = (sf.col("errors") > 0) & (rate >= rule.rate_min)
    return counted.where(is_alert & (sf.col("requests") >= rule.requests_min)).select(
        sf.col("topic").alias("site"),
        (sf.col("path") if rule.is_by_path else sf.lit(None).cast("string")).alias("path"),
        sf.col("window.start").alias("window_start"),
        sf.col("window.end").alias("window_end"),
        *("requests", "errors"),
        rate.alias("rate"),
    )
