"""Measures of runs, for people and for programs."""
