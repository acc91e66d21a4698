"""The names of the tasks, which the command line lists without PyTorch."""

TASK_SUMMARIES = {
    "lm": "Model the probability of texts.",
    "mlm": "Predict masked tokens of texts.",
    "classify": "Label texts.",
    "tag": "Tag words.",
    "seq2seq": "Write one text for another.",
}
"""What each task does, by its name, which is also the name of its file."""
FITTED_NAMES = ("ngram", "bag", "features", "rules")
"""The files of the models that are fitted directly, which are also the values of ``model.layer``."""
