"""Configuration that protects stored data: the key of the secrets, and signed heads of the journal."""

from __future__ import annotations

from msgspec import Struct

from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import SPAN_OVER_ZERO, text
from corral.wire.job.program import PATH_TEXT


class SecretRules(Struct, frozen=True, kw_only=True):
    """``key_file`` empty: systemd's credential, or a file in the data folder."""

    key_file: str = ""


class AttestRules(Struct, frozen=True, kw_only=True):
    """``file``, ``url``: where signed heads of the journal are sent; with neither, none are made."""

    file: str = ""
    url: str = ""
    every_ms: int = 3_600_000
    key_file: str = ""

    @property
    def is_on(self) -> bool:
        return bool(self.file or self.url)


SECRET_KEYS = KeyTable(
    "secrets",
    [
        Key("key_file", PATH_TEXT, "File with the encryption keys; created by `corral secret new-key`.",
            "/etc/corral/secrets.key", default="in the data folder", into="key_file"),
    ],
)  # fmt: skip
ATTEST_KEYS = KeyTable(
    "attest",
    [
        Key("file", PATH_TEXT, "File to append signed heads to, preferably on another machine.",
            "/mnt/audit/corral.heads", into="file"),
        Key("url", text("the address of a web server", pattern=r"https?://[^\s]+"),
            "URL to post each signed head to.", "https://audit.example/corral", into="url"),
        Key("every", SPAN_OVER_ZERO, "Interval between signed heads, if there are new records.",
            "1h", default="1h", into="every_ms"),
        Key("key_file", PATH_TEXT, "Signing key; created if it does not exist.",
            "/etc/corral/attest.key", default="in the data folder", into="key_file"),
    ],
)  # fmt: skip


SECRETS = struct_kind(SECRET_KEYS, "a mapping", SecretRules)
ATTEST = struct_kind(ATTEST_KEYS, "a mapping", AttestRules)
