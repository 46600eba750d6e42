"""Compute the surcharge of an area from its demand and supply in a window of time.

Demand and supply come in one stream and are summed in one pass. Two streams that are summed separately and then joined
would keep each window twice, and take twice as long. The functions work on a stream or a table of
``market.market_events``.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRule:
    """The surcharge of a window: the percentage by which demand exceeds supply, a whole number up to ``percent_max``.

    It is 0 if demand does not exceed supply, and ``percent_max`` if there is demand and no supply.
    """

    window_s: int
    percent_max: int


def surcharges_of(events: DataFrame, rule: PriceRule) -> DataFrame:
    """Return a row per area and window [window_start, window_end) with any event.

    Columns: area string; window_start, window_end timestamp; demand, supply, surcharge_percent bigint; last_event_at,
    priced_at timestamp; delay_ms bigint, from the latest event in the window to the price, by this machine's clock.
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
    # Use integers, so that a price is the same on every machine.
    excess = sf.expr("(demand - supply) * 100 div nullif(supply, 0)")
    without_supply = sf.when(sf.col("demand") > 0, rule.percent_max).otherwise(0)
    bounded = sf.least(sf.coalesce(excess, without_supply), sf.lit(rule.percent_max))
    return sf.greatest(bounded, sf.lit(0)).cast("bigint")
