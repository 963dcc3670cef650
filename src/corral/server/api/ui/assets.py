"""The files of the dashboard, read once: each with its type, a compressed copy, and one version for all of them.

The version is in their path, so that browsers keep them for good and a new server brings new ones. All addresses in
them are relative: the dashboard works under any path of a proxy. Knows nothing about what is in the files.
"""

from __future__ import annotations

import gzip
from functools import cache
from hashlib import sha256
from importlib import resources
from importlib.resources.abc import Traversable

from msgspec import Struct

from corral.server.api.http.problems import ApiError
from corral.server.api.http.request import ApiRequest, Content, Reply

_KINDS = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
#: Only this server: no other scripts, styles or addresses, and no frame around the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_PAGE = "index.html"
_FOREVER = ("Cache-Control", "public, max-age=31536000, immutable")
_GUARDS = (
    ("Content-Security-Policy", POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("X-Frame-Options", "DENY"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=()"),
)


class Asset(Struct, frozen=True):
    kind: str
    body: bytes
    packed: bytes


class AssetFolder(Struct, frozen=True):
    """All files by their path, and their common version."""

    version: str
    files: dict[str, Asset]


@cache
def assets() -> AssetFolder:
    found = dict(sorted(_files(resources.files("corral.server.api.ui") / "static")))
    version = sha256(b"".join(name.encode() + b"\0" + body for name, body in found.items())).hexdigest()[:12]
    found[_PAGE] = found[_PAGE].replace(b"VERSION", version.encode())
    files = {
        name: Asset(_KINDS[name.rpartition(".")[2]], body, gzip.compress(body, 9, mtime=0))
        for name, body in found.items()
    }
    return AssetFolder(version, files)


def _files(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _files(each, f"{prefix}{each.name}/")
        elif each.name.rpartition(".")[2] in _KINDS:
            found.append((prefix + each.name, each.read_bytes()))
    return found


async def page(request: ApiRequest) -> Reply:
    """The page itself: the same for all users, and never kept, because it names the version of the rest."""
    return _sent(request, assets().files[_PAGE], _GUARDS)


async def asset(request: ApiRequest) -> Reply:
    folder = assets()
    found = folder.files.get(request.path["file"])
    if found is None or request.path["version"] != folder.version:
        why = "there is no such file in this version of the dashboard"
        raise ApiError(404, "no_such_file", why, "load the page again")
    return _sent(request, found, (_FOREVER, *_GUARDS))


def _sent(request: ApiRequest, found: Asset, headers: tuple[tuple[str, str], ...]) -> Content:
    vary = ("Vary", "Accept-Encoding")
    if "gzip" in request.header(b"accept-encoding"):
        return Content(found.packed, found.kind, (*headers, vary, ("Content-Encoding", "gzip")))
    return Content(found.body, found.kind, (*headers, vary))
