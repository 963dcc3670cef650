"""Formats: what users write and what programs exchange. Knows texts; decides nothing."""
