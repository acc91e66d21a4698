"""Training: objectives, optimizers and schedules, the loop, checkpoints."""
