"""Commands about jobs: submit, show, wait, change."""
