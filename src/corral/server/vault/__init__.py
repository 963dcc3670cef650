"""Values of secrets, encrypted; the token of the first start; signed heads of the journal."""

from __future__ import annotations

from pathlib import Path

from corral.server.vault.sealing import Sealer
from corral.server.vault.sealing_keys import load_keys
from corral.server.vault.secret_store import FileValues, SecretStore, Values


def secrets_of(data: Path, key_file: str = "", shared: Values | None = None) -> SecretStore:
    """The secrets of a server: in its data folder, or in ``shared``, which other servers use as well."""
    sealer = Sealer(load_keys(key_file, data, is_shared=shared is not None))
    return SecretStore(FileValues(data / "secrets") if shared is None else shared, sealer)
