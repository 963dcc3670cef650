"""Submissions that come through a broker: messages handed over, and the intake that the server runs."""
