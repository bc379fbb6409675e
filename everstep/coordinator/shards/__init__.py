"""Which samples are leased to whom."""
