"""N-grams: counted, smoothed, kept in sorted tables."""
