"""Judges of whole runs: each reads what happened in days of simulated time and says whether a promise was kept."""
