"""What runs in the client's pod beside a chart's life: it writes, reads back, and says what it was told."""
