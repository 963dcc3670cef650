"""Kubernetes users: `CorralJob` objects become jobs of Corral, and suspended Jobs with a queue are admitted by it.

Needs the extra ``kubernetes``. A client of Corral and of an API server; keeps no state of its own.
"""
