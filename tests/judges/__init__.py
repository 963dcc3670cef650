"""Judges: small programs that say, from a state and a plan, whether a documented promise was kept.

They share no code with ``corral.policy`` nor with ``corral.core.queues.quota``; README.md tells how they are used.
"""
