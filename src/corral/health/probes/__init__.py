"""Tests of idle GPUs and of the machine, each in a process of its own: a driver that hangs blocks nothing else."""
