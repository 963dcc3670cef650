"""Configuration of a server whose tasks are pods: how pods are made on the cluster of the site.

Knows keys and texts, not what they mean to Kubernetes.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.wire.document.errors import Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import (
    FLAG,
    SIZE_OVER_ZERO,
    SPAN_OVER_ZERO,
    ValueKind,
    choice,
    listing,
    number,
    pairs,
    text,
)
from corral.wire.job.program import PATH_TEXT

_DEPTH_MAX, _ITEMS_MAX = 20, 5_000
DEVICE_PLUGIN, EXACT = "device-plugin", "exact"
NODE_NAME, BINDING = "node-name", "binding"
#: Where the files of Corral appear in the container of a task, each pod in a folder of its own.
FILES = "/run/corral"
DELIVER = ("python3", "-m", "corral.kubernetes.pod.deliver")


class PodSettings(Struct, frozen=True, kw_only=True):
    """``name`` tells apart the pods of several Corrals on one cluster; it must not change while pods run."""

    kubeconfig: str = ""  # empty: the service account of this pod, or the usual places
    context: str = ""
    name: str = "corral"
    namespace: str = ""  # empty: the one of the credentials
    namespaces: tuple[tuple[str, str], ...] = ()  # queue -> namespace; for queues below it as well
    image: str = ""  # of jobs without one; empty: those are refused
    supervisor_image: str = ""
    deliver: tuple[str, ...] = DELIVER  # the command of the init container, in that image
    files: str = FILES
    service_account: str = ""
    pull_secrets: tuple[str, ...] = ()
    pull_patience_ms: int = 300_000  # then an image that cannot be pulled fails the task
    volumes: tuple[tuple[str, str], ...] = ()  # sources of mounts in job files -> claims
    shm_mib: int | None = None  # of /dev/shm; None: as much as the memory limit allows
    user: int = 1000  # that containers run as; 0: root, which namespaces with restrictions refuse
    template: tuple[tuple[str, Any], ...] = ()  # a pod of the site, merged into every pod
    bind: str = NODE_NAME
    scheduler: str = "corral"  # schedulerName, with `bind: binding`
    gpus: str = DEVICE_PLUGIN
    gpu_resource: str = "nvidia.com/gpu"
    resource_slices: bool = False
    topology: tuple[str, ...] = ()  # labels of nodes, outermost first: the levels of the configuration
    nodes: str = ""  # a label selector; empty: all nodes
    port: int = 0  # where supervisors connect to; 0: any, kept across restarts
    address: str = ""  # host:port at which pods reach that; empty: this machine; "none": they cannot

    def namespace_of(self, queue: str, default: str) -> str:
        found = dict(self.namespaces)
        parts = queue.split("/")
        for count in range(len(parts), 0, -1):
            if "/".join(parts[:count]) in found:
                return found["/".join(parts[:count])]
        return self.namespace or default

    def all_namespaces(self, default: str) -> list[str]:
        return sorted({self.namespace or default, *(namespace for _, namespace in self.namespaces)})

    def claim_of(self, source: str) -> str | None:
        return dict(self.volumes).get(source)


def _read_template(value: Any, _path: Path, _reading: Reading) -> tuple[tuple[str, Any], ...]:
    if type(value) is not dict:
        raise Wrong("wrong_type", f"this must be a pod, not {show(value)}", "write metadata: ... and spec: ...")
    for key in value:
        if key not in ("metadata", "spec"):
            raise Wrong("unknown_key", f"a pod has no {show(key)} here", "only metadata and spec are merged")
    if _size(value, _DEPTH_MAX) > _ITEMS_MAX:
        raise Wrong("too_long", "the template is too large or nested too deeply", "keep what all pods need")
    return tuple(value.items())


def _size(value: Any, depth: int) -> int:
    """The number of values in it."""
    if depth < 0:
        return _ITEMS_MAX + 1
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(_size(each, depth - 1) for each in below)


_NAME = text("a name of Kubernetes", most="name_chars", pattern=r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL = text("a label of nodes", most="name_chars", pattern=r"([-A-Za-z0-9.]+/)?[-A-Za-z0-9_.]+")
_IMAGE = text("an image", pattern=r"[^\s]+")
_QUEUE = text("a queue", most="name_chars")
_TEMPLATE = ValueKind(_read_template, {"type": "object"}, "a pod", dict)
POD_KEYS = KeyTable(
    "kubernetes",
    [
        Key("kubeconfig", PATH_TEXT, "File that describes the cluster and the credentials.", "/etc/corral/kubeconfig",
            default="the service account of this pod, or kubectl's", into="kubeconfig"),
        Key("context", text("a context of the kubeconfig"), "Context in that file.", "gpu-cluster",
            default="the current one", into="context"),
        Key("name", text("a name", pattern=r"[a-z]([-a-z0-9]{0,10}[a-z0-9])?"),
            "Tells apart the pods of several servers on one cluster.", "corral", default="corral", into="name"),
        Key("namespace", _NAME, "Namespace of the pods.", "training", default="that of the credentials",
            into="namespace"),
        Key("namespaces", pairs(_QUEUE, _NAME, "a mapping of queues to namespaces", "labels"),
            "Namespaces of single queues and those below them.", {"lab/vision": "vision"}, into="namespaces"),
        Key("image", _IMAGE, "Image of jobs that name none.", "python:3.12", default="such jobs are refused",
            into="image"),
        Key("supervisor_image", _IMAGE, "Corral's own image, from which the supervisor is delivered into every pod.",
            "corral:0.1", default="corral with the version of the server", into="supervisor_image"),
        Key("deliver", listing(text("a word of a command"), "a command", "models"),
            "Command of the init container.", list(DELIVER), default=" ".join(DELIVER), into="deliver"),
        Key("files", PATH_TEXT, "Where the files of Corral are mounted in containers.", FILES, default=FILES,
            into="files"),
        Key("service_account", _NAME, "Service account of the pods; its token is not mounted.", "training",
            default="default", into="service_account"),
        Key("pull_secrets", listing(_NAME, "a list of names", "models"), "Secrets to pull images with.",
            ["registry"], into="pull_secrets"),
        Key("pull_patience", SPAN_OVER_ZERO, "How long an image may fail to be pulled before the task fails.", "5m",
            default="5m", into="pull_patience_ms"),
        Key("volumes", pairs(PATH_TEXT, _NAME, "a mapping of sources to claims", "labels"),
            "PersistentVolumeClaims by the source that `mounts` of a job names.", {"/data": "datasets"},
            into="volumes"),
        Key("shm", SIZE_OVER_ZERO, "Size of /dev/shm in a container.", "16GiB", default="the memory of the task",
            into="shm_mib"),
        Key("user", number("a user id", 0, 2_147_483_647),
            "User that containers run as; 0: root, which namespaces with Pod Security refuse.", 1000, default="1000",
            into="user"),
        Key("template", _TEMPLATE, "A pod of the site (metadata, spec) that is merged into every pod.",
            {"spec": {"runtimeClassName": "nvidia"}}, into="template"),
        Key("bind", choice((NODE_NAME, BINDING)),
            "How a pod gets its node: `node-name` in the pod, or by the `binding` subresource.", NODE_NAME,
            default=NODE_NAME, into="bind"),
        Key("scheduler", _NAME, "schedulerName of pods, with `bind: binding`.", "corral", default="corral",
            into="scheduler"),
        Key("gpus", choice((DEVICE_PLUGIN, EXACT)),
            "`device-plugin`: as many as requested, Kubernetes chooses which; `exact`: by NVIDIA_VISIBLE_DEVICES.",
            DEVICE_PLUGIN, default=DEVICE_PLUGIN, into="gpus"),
        Key("gpu_resource", _LABEL, "Resource that stands for a GPU.", "amd.com/gpu", default="nvidia.com/gpu",
            into="gpu_resource"),
        Key("resource_slices", FLAG, "Read GPUs from ResourceSlices (Dynamic Resource Allocation).", True,
            default="false", into="resource_slices"),
        Key("topology", listing(_LABEL, "a list of labels", "models"),
            "Labels of nodes that are the `levels`, outermost first.",
            ["topology.kubernetes.io/zone", "topology.kubernetes.io/rack"], into="topology"),
        Key("nodes", text("a label selector"), "Only nodes with these labels.", "pool=gpu", default="all nodes",
            into="nodes"),
        Key("port", number("a port", 0, 65_535), "Port for supervisors in pods; 0: any, kept across restarts.", 7414,
            default="0", into="port"),
        Key("address", text("host:port", pattern=r"none|[^\s]+:[0-9]+"),
            "Where pods reach that port; `none`: they cannot, and are warned by deleting them.",
            "corral.corral.svc:7414", default="an address of this machine", into="address"),
    ],
)  # fmt: skip
PODS = struct_kind(POD_KEYS, "a mapping", PodSettings)
