"""The few objects that Corral keeps on a cluster beside pods: the fence, the keys of supervisors, one per gang.

The fence is a ConfigMap with the highest epoch that any server has had; it is replaced only in the version that was
read. Knows requests; no thread of its own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from corral.kubernetes.cluster_api import ApiRefused, ClusterApi, Document, object_path
from corral.kubernetes.pod_names import ATTEMPT, GANG, INSTANCE, gang_name, labels
from corral.kubernetes.supervisor_port import PortKeys, new_keys
from corral.runtime.base import StaleEpoch

MAPS, SECRETS = "api/v1/configmaps", "api/v1/secrets"
_TRIES = 20


def pass_fence(api: ClusterApi, namespace: str, instance: str, epoch: int) -> None:
    """Store this epoch, so that servers of earlier ones are refused. Raises `StaleEpoch`."""
    name = fence_name(instance)
    path = object_path(MAPS, namespace, name)
    for _ in range(_TRIES):
        try:
            found = api.get(path)
        except ApiRefused as refused:
            if refused.status != 404:
                raise
            body = _fence(instance, name, epoch)
            try:
                api.create(object_path(MAPS, namespace), body)
            except ApiRefused as other:
                if other.status != 409:
                    raise
            continue
        stored = fenced_epoch(found)
        if stored > epoch:
            raise StaleEpoch(epoch, stored)
        if stored == epoch:
            return
        body = _fence(instance, name, epoch)
        body["metadata"]["resourceVersion"] = found["metadata"]["resourceVersion"]
        try:
            api.replace(path, body)
        except ApiRefused as refused:
            if refused.status not in (404, 409):
                raise
    raise ApiRefused(409, "Conflict", f"{name} is changed by others all the time")


def fence_name(instance: str) -> str:
    return f"{instance}-fence"


def fenced_epoch(found: Document) -> int:
    stated = str((found.get("data") or {}).get("epoch") or "")
    return int(stated) if stated.isdecimal() else 0


def _fence(instance: str, name: str, epoch: int) -> Document:
    metadata = {"name": name, "labels": {INSTANCE: instance}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"epoch": str(epoch)}}


def port_keys(api: ClusterApi, namespace: str, instance: str) -> PortKeys:
    """The keys that all servers of this instance share; made by the first."""
    name = f"{instance}-supervisors"
    path = object_path(SECRETS, namespace, name)
    while True:
        try:
            return _keys_in(api.get(path))
        except ApiRefused as refused:
            if refused.status != 404:
                raise
        keys = new_keys()
        stored = {"certificate": keys.certificate, "private_key": keys.private_key, "token_key": keys.token_key}
        data = {key: base64.b64encode(value.encode()).decode() for key, value in stored.items()}
        metadata = {"name": name, "labels": {INSTANCE: instance}}
        try:
            api.create(
                object_path(SECRETS, namespace),
                {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "data": data},
            )
            return keys
        except ApiRefused as refused:
            if refused.status != 409:
                raise


def _keys_in(found: Document) -> PortKeys:
    data: Mapping[str, str] = found.get("data") or {}
    names = ("certificate", "private_key", "token_key")
    certificate, private_key, token_key = (base64.b64decode(data.get(name, "")).decode() for name in names)
    return PortKeys(certificate, private_key, token_key)


def make_owner(api: ClusterApi, namespace: str, instance: str, gang: str, attempt: int) -> Document:
    """The object that owns everything of one attempt, as a reference. Made if it is not there."""
    name = gang_name(instance, gang, attempt)
    metadata = {
        "name": name,
        "labels": labels(instance, gang, attempt),
        "annotations": {GANG: gang, ATTEMPT: str(attempt)},
    }
    try:
        found = api.create(
            object_path(MAPS, namespace), {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        )
    except ApiRefused as refused:
        if refused.status != 409:
            raise
        found = api.get(object_path(MAPS, namespace, name))
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": found["metadata"]["uid"]}


def make_secret(api: ClusterApi, namespace: str, secret: Document) -> None:
    try:
        api.create(object_path(SECRETS, namespace), secret)
    except ApiRefused as refused:
        if refused.status != 409:
            raise


def drop_owner(api: ClusterApi, namespace: str, instance: str, gang: str, attempt: int) -> None:
    """Kubernetes removes what it owns."""
    name = gang_name(instance, gang, attempt)
    api.delete(object_path(MAPS, namespace, name), propagation="Background")
