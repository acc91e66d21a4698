"""Linear models of sparse features: features of texts and words as keys, sparse products, and their minimization."""
