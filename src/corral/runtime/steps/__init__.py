"""Job steps: processes that are started inside a running gang, on all or some of its seats, and their streams.

``step_frames`` is the protocol; ``step_ledger`` and ``step_ranks`` decide which process runs where, with which share;
``seat_host`` runs them for the supervisor of a seat; ``step_client`` asks for them.
"""
