"""The folder of a run: training, opening, streaming, scoring, ensembles, the model card."""
