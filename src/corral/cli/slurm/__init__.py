"""The commands of Slurm, for scripts and tools that call them. Thin: one process start, and steps or the public API.

Each module is one command with ``main(arguments) -> exit code``. They import little, because most of the time of a
short command is its start.
"""
