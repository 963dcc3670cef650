"""What a GPU-hour costs at this site, by model: for what people see, not for decisions."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.wire.document.errors import Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import ValueKind, pairs, text

_PRICE_MAX = 1_000_000


class SitePrices(Struct, frozen=True, kw_only=True):
    """Prices of a GPU-hour, in thousandths of a unit of the currency. ``other_milli``: of models that are not named."""

    currency: str = ""
    gpu_hour_milli: tuple[tuple[str, int], ...] = ()
    other_milli: int = 0

    @property
    def is_stated(self) -> bool:
        return bool(self.gpu_hour_milli or self.other_milli)

    def of(self, model: str) -> int:
        return dict(self.gpu_hour_milli).get(model, self.other_milli)


def _read_price(value: Any, _path: Path, _reading: Reading) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _PRICE_MAX:
        raise Wrong("wrong_type", f"a price is a number from 0 to {_PRICE_MAX}, not {show(value)}", "for example 2.5")
    return round(value * 1000)


def _write_price(milli: int) -> int | float:
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


_PRICE = ValueKind(_read_price, {"type": "number", "minimum": 0, "maximum": _PRICE_MAX}, "a price", _write_price)
_MODEL = text("the model of a GPU", most="name_chars")

PRICE_KEYS = KeyTable(
    "prices",
    [
        Key("currency", text("the name of a currency", most="name_chars"), "Currency of the prices.", "EUR",
            into="currency"),
        Key("gpu_hour", pairs(_MODEL, _PRICE, "a mapping of models to prices", "models"),
            "Price of a GPU-hour, by the model of the GPU.", {"H100": 2.5, "A100": 1.2}, default="none",
            into="gpu_hour_milli"),
        Key("other", _PRICE, "Price of a GPU-hour of models that are not named.", 1, default="0", into="other_milli"),
    ],
)  # fmt: skip
PRICES = struct_kind(PRICE_KEYS, "a mapping", SitePrices)
