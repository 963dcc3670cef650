"""Policies that look at everyone anew: all who run and all who wait, sorted together; whoever does not fit waits."""
