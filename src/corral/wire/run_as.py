"""Configuration of accounts that jobs run as. Knows keys and texts, not their effect."""

from __future__ import annotations

from corral.core.accounts.commands import ACCOUNT
from corral.core.accounts.identity import AccountRules
from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import SPAN, text

ACCOUNT_KEYS = KeyTable(
    "accounts",
    [
        Key("default", text("a Unix account", pattern=ACCOUNT.pattern),
            "Account for jobs of users who have none. Without it, such jobs are refused where Corral runs as root.",
            "research", default="none", into="default"),
        Key("cancel_after", SPAN, "How long jobs of a removed or disabled user wait before they are cancelled.",
            "1d", default="1d", into="cancel_after_ms"),
    ],
)  # fmt: skip
ACCOUNTS = struct_kind(ACCOUNT_KEYS, "a mapping", AccountRules)
