"""Few examples by default, always the same ones, so that a failure is a fact and not luck."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "laws", max_examples=50, derandomize=True, deadline=None, database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
settings.load_profile("laws")
