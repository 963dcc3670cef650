"""Corral: a scheduler for machine-learning work on shared GPUs.

This package root only names the release. It imports none of its sub-packages, so that a light user of
one of them (a training script, the command line) does not pay for the others.
"""

__version__ = "0.1.0"
