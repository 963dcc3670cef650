"""Sign-in with tokens of service accounts, against a real API server: its keys, its authority, its refusals."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from corral.wire.identity_providers import IssuerRules, ProgramRule, SignInRules
from tests.kubernetes.control_plane import ControlPlane
from tests.server.test_sign_in import Site

NAMESPACE = "sign-in"


@pytest.fixture
async def cluster(control_plane: ControlPlane, tmp_path: Path):
    """A server that accepts tokens of one service account of one namespace."""
    control_plane.kubectl("create", "namespace", NAMESPACE, check=False)
    for account in ("trainer", "other"):
        control_plane.kubectl("create", "serviceaccount", "-n", NAMESPACE, account, check=False)
    file = tmp_path / "token"  # the server's own, which it shows to read the keys
    file.write_text(control_plane.kubectl("create", "token", "-n", NAMESPACE, "other"))
    stated = json.loads(control_plane.call("GET", "/.well-known/openid-configuration"))["issuer"]
    claims = (("kubernetes.io.namespace", NAMESPACE), ("kubernetes.io.serviceaccount.name", "trainer"))
    rule = ProgramRule(claims=claims, user="trainer", role="member", queue="team")
    issuer = IssuerRules(
        issuer=stated, audience="corral", rules=(rule,),
        ca=str(control_plane.ca), discovery=control_plane.server, token_file=str(file),
    )  # fmt: skip
    site = Site(None, SignInRules(issuers=(("cluster", issuer),)))
    yield site
    site.app.close()


def token(plane: ControlPlane, account: str, *more: str) -> str:
    return plane.kubectl("create", "token", "-n", NAMESPACE, account, *more).strip()


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


async def test_a_pod_signs_in_with_the_token_of_its_service_account_once(control_plane, cluster):
    made = token(control_plane, "trainer", "--audience", "corral")
    answer = await cluster.exchange(made)
    assert (answer.status, answer.json()["user"]) == (201, "trainer")
    assert (await cluster.exchange(made)).code == "token_used"
    assert (await cluster.exchange(token(control_plane, "trainer", "--audience", "corral"))).status == 201


async def test_tokens_for_others_and_changed_ones_are_refused(control_plane, cluster):
    assert (await cluster.exchange(token(control_plane, "other", "--audience", "corral"))).code == "no_rule"
    assert (await cluster.exchange(token(control_plane, "trainer"))).code == "bad_id_token"  # for the API server
    head, body, signature = token(control_plane, "other", "--audience", "corral").split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    claims["kubernetes.io"]["serviceaccount"]["name"] = "trainer"
    assert (await cluster.exchange(f"{head}.{part(claims)}.{signature}")).code == "bad_id_token"
    unsigned = part({"alg": "none"}) + "." + part(claims | {"exp": int(time.time()) + 300}) + "."
    assert (await cluster.exchange(unsigned)).code == "bad_id_token"


async def test_what_is_missing_to_read_the_keys_is_named(control_plane, cluster, tmp_path):
    (tmp_path / "token").write_text("not a token")
    answer = await cluster.exchange(token(control_plane, "trainer", "--audience", "corral"))
    assert "needs a token: set token_file of this issuer (status 401)" in answer.json()["detail"]
