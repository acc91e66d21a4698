"""Training: the loop, optimizers and schedules, checkpoints, and the interface of a task."""
