"""What runs inside the pod of a task: delivered by an init container, with an interpreter of its own, into any image.

Imports only the standard library and those parts of `corral.runtime` that supervise a task.
"""
