"""What is learned from batches that have ended: how long one takes by its size, how long a model takes to load, and how
much more VRAM items need than they say.

Knows numbers only. Recent batches count more than old ones. Nothing is known before the first batch.
"""

from __future__ import annotations

_KEEP = 0.97  # of the weight of earlier batches, with each new one
_KEEP_LOAD = 0.7
_OUT_OF_MEMORY = 1.25  # by how much the size of items grows each time a worker had too little VRAM
_SCALE_MAX = 8.0


class Learned:
    """A straight line through the measured times, by the cost of batches; the mean of its error; times of loading."""

    def __init__(self) -> None:
        self._weight = 0.0
        self._x = self._y = self._xx = self._xy = 0.0
        self._error = 0.0
        self._fixed = self._slope = 0.0
        self.load_us = 0
        self.size_scale = 1.0  # real VRAM of items, as a multiple of what they say

    @property
    def is_known(self) -> bool:
        return self._weight > 0

    def batch_ended(self, cost: int, service_us: int) -> None:
        if self._weight:
            error = abs(service_us - self.service_us(cost))
            self._error += (1 - _KEEP) * 3 * (error - self._error)
        self._weight = self._weight * _KEEP + 1
        self._x = self._x * _KEEP + cost
        self._y = self._y * _KEEP + service_us
        self._xx = self._xx * _KEEP + cost * cost
        self._xy = self._xy * _KEEP + cost * service_us
        self._fit()

    def _fit(self) -> None:
        """Least squares with neither part below zero. Batches of one size say nothing about others: then all of the
        time counts as fixed for smaller ones, and grows in proportion for larger ones."""
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        variance = self._xx / self._weight - mean_x * mean_x
        if variance < 0.01 * mean_x * mean_x:
            self._slope = mean_y / mean_x / 2
        else:
            self._slope = max(0.0, (self._xy / self._weight - mean_x * mean_y) / variance)
        self._fixed = mean_y - self._slope * mean_x
        if self._fixed < 0:
            self._fixed, self._slope = 0.0, mean_y / mean_x

    def service_us(self, cost: int) -> int:
        """The expected time of a batch."""
        return int(self._fixed + self._slope * cost)

    def bound_us(self, cost: int) -> int:
        """A time that most batches of this cost do not exceed."""
        return int(self._fixed + self._slope * cost + 2 * self._error)

    def cost_within(self, service_us: int) -> int:
        """The largest cost of a batch that is expected to end within a time; at least 1."""
        if self._slope <= 0:
            return 1_000_000_000
        return max(1, int((service_us - self._fixed) / self._slope))

    def loaded(self, load_us: int) -> None:
        self.load_us = load_us if not self.load_us else int(_KEEP_LOAD * self.load_us + (1 - _KEEP_LOAD) * load_us)

    def measured(self, said_mib: int, peak_mib: int) -> None:
        """A batch whose items said ``said_mib`` needed ``peak_mib`` beside the models."""
        if said_mib > 0:
            self.size_scale = min(_SCALE_MAX, max(self.size_scale, peak_mib / said_mib))

    def ran_out(self) -> None:
        self.size_scale = min(_SCALE_MAX, self.size_scale * _OUT_OF_MEMORY)
