"""Measures of runs, as tables, pages and files."""
