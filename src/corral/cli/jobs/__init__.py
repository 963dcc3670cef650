"""Commands about jobs: submit, look, wait, change."""
