"""What is promised of runs, files and data: a test for each promise, named after it."""
