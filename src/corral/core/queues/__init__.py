"""The queues: who may take how much, who has used how much, and who waits in which order."""
