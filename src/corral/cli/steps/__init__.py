"""Commands that start processes inside running jobs."""
