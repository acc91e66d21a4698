"""Models that are counted, or fitted as a whole: n-grams, bags of n-grams, taggers with word features, rules."""
