"""Let contenders take turns in rounds, and measure each turn."""
