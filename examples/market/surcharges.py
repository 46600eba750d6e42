"""Prices by demand and supply: what an area costs extra, from what was asked for and offered in a window of time.

Both kinds of events come in one stream, and are summed in one pass: two streams that are summed apart and joined would
keep each window twice, and take twice as long. Works on a stream of ``market.market_events`` as on a table.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRule:
    """A window's surcharge is by how many percent demand exceeds supply, whole percents, at most ``percent_max``.

    It is 0 where demand does not exceed supply, and ``percent_max`` where there is demand and no supply.
    """

    window_s: int
    percent_max: int


def surcharges_of(events: DataFrame, rule: PriceRule) -> DataFrame:
    """A row an area and window with any event: the window is [window_start, window_end).

    Columns: area string; window_start, window_end timestamp; demand, supply, surcharge_percent bigint; last_event_at,
    priced_at timestamp; delay_ms bigint, from the latest event in it to the price, by this machine's clock.
    """
    summed = events.groupBy(sf.window("time", f"{rule.window_s} seconds"), "area").agg(
        _sum_of("demand").alias("demand"),
        _sum_of("supply").alias("supply"),
        sf.max("time").alias("last_event_at"),
    )
    return summed.select(
        "area",
        sf.col("window.start").alias("window_start"),
        sf.col("window.end").alias("window_end"),
        *("demand", "supply"),
        _percent(rule).alias("surcharge_percent"),
        "last_event_at",
        sf.current_timestamp().alias("priced_at"),
        (sf.unix_millis(sf.current_timestamp()) - sf.unix_millis(sf.col("last_event_at"))).alias(
            "delay_ms"
        ),
    )


def _sum_of(kind: str) -> Column:
    return sf.sum(sf.when(sf.col("kind") == kind, sf.col("count")).otherwise(0))


def _percent(rule: PriceRule) -> Column:
    # Integers, so that a price is the same on every machine.
    excess = sf.expr("(demand - supply) * 100 div nullif(supply, 0)")
    without_supply = sf.when(sf.col("demand") > 0, rule.percent_max).otherwise(0)
    bounded = sf.least(sf.coalesce(excess, without_supply), sf.lit(rule.percent_max))
    return sf.greatest(bounded, sf.lit(0)).cast("bigint")
