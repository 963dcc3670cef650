"""Is a JSON Web Token genuine, meant for this server, and valid now?

Only signatures by a key pair are accepted: with a shared secret, or none, every
program that can read the public keys could sign.
Knows keys, times and claims. Knows nothing about providers, users or HTTP.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key

TOKEN_BYTES_MAX = 16 << 10
SKEW_S = 60  # how far the clocks of the issuer and of this server may differ
LIFETIME_S_MAX = 86_400
KEYS_MAX = 100
#: The algorithms that are accepted, and the type of key that each needs.
ALGORITHMS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}

Claims = dict[str, Any]


class BadIdToken(Exception):
    """What is wrong with a token, in words that its sender may read."""


class UnknownKey(BadIdToken):
    """No known key has the id that the token names. The issuer may have new keys."""


def digest_of_token(text: str) -> str:
    """Identifies the content and signature of a token, so that it is recognised when it comes again."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def import_keys(document: object) -> list[Key]:
    """The public keys of an issuer. Keys of unknown types, and for encryption, are left out."""
    stated = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(stated, list) or len(stated) > KEYS_MAX:
        raise BadIdToken("the issuer has no usable list of keys")
    found = []
    for each in stated:
        if not isinstance(each, dict) or each.get("kty") not in ALGORITHMS.values() or each.get("use", "sig") != "sig":
            continue
        try:
            found.append(JWKRegistry.import_key({name: value for name, value in each.items() if name != "d"}))
        except (JoseError, ValueError, TypeError, KeyError, binascii.Error):
            continue
    return found


def verified(text: str, keys: Sequence[Key], issuer: str, audience: str, now_s: float, nonce: str = "") -> Claims:
    """The claims of a token, all of it checked; otherwise raises ``BadIdToken``."""
    header = header_of(text)
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise BadIdToken(f"its algorithm, {str(algorithm)[:20]!r}, is not accepted")
    if "crit" in header:
        raise BadIdToken("it has extensions that are not understood")
    claims = _signed(text, algorithm, _candidates(header, algorithm, keys))
    _check_parties(claims, issuer, audience)
    _check_times(claims, now_s)
    if nonce and claims.get("nonce") != nonce:
        raise BadIdToken("it belongs to another sign-in (nonce)")
    return claims


def header_of(text: str) -> Mapping[str, Any]:
    if len(text) > TOKEN_BYTES_MAX or not text.isascii() or text.count(".") != 2:
        raise BadIdToken("it is not a signed JSON Web Token")
    try:
        head = text.partition(".")[0]
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        raise BadIdToken("its header cannot be read") from None
    if not isinstance(header, dict):
        raise BadIdToken("its header cannot be read")
    return header


def issuer_of(text: str) -> str:
    """The issuer that a token names. Nothing is checked yet: only to find whose keys must have signed it."""
    header_of(text)
    try:
        body = text.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, RecursionError):
        raise BadIdToken("its claims cannot be read") from None
    return str(claims.get("iss", "")) if isinstance(claims, dict) else ""


def _candidates(header: Mapping[str, Any], algorithm: str, keys: Sequence[Key]) -> list[Key]:
    """The keys that may have signed it: of the right type, for this algorithm, with the id that it names."""
    kid = header.get("kid")
    fit = [key for key in keys if key.key_type == ALGORITHMS[algorithm] and key.get("alg", algorithm) == algorithm]
    named = [key for key in fit if kid is None or key.kid == kid]
    if not named:
        raise UnknownKey("no key of the issuer fits it")
    return named


def _signed(text: str, algorithm: str, keys: Sequence[Key]) -> Claims:
    for key in keys:
        try:
            claims = jwt.decode(text, key, algorithms=[algorithm]).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            continue
        return dict(claims)
    raise BadIdToken("its signature is wrong")


def _check_parties(claims: Claims, issuer: str, audience: str) -> None:
    if claims.get("iss") != issuer:
        raise BadIdToken("it is of another issuer")
    stated = claims.get("aud")
    audiences = stated if isinstance(stated, list) else [stated]
    if audience not in audiences:
        raise BadIdToken("it is meant for another audience")
    if (len(audiences) > 1 or "azp" in claims) and claims.get("azp", audience) != audience:
        raise BadIdToken("it was issued to another client")
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise BadIdToken("it names no subject")


def _check_times(claims: Claims, now_s: float) -> None:
    times = {name: claims[name] for name in ("exp", "iat", "nbf") if name in claims}
    if "exp" not in times or "iat" not in times:
        raise BadIdToken("it does not say when it was issued and when it expires")
    if any(type(each) not in (int, float) or not abs(each) < 1 << 40 for each in times.values()):
        raise BadIdToken("its times are not numbers")
    if times["exp"] <= now_s - SKEW_S:
        raise BadIdToken("it has expired")
    if times["iat"] > now_s + SKEW_S or times.get("nbf", 0) > now_s + SKEW_S:
        raise BadIdToken("it is not valid yet; compare the clocks of the issuer and of this server")
    if times["exp"] > now_s + LIFETIME_S_MAX + SKEW_S:
        raise BadIdToken("it is valid for longer than a day")
