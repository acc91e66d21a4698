"""N-grams: counting, smoothing and sorted tables."""
