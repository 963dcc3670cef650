"""``corral kubernetes``: objects of a Kubernetes cluster as jobs."""

from __future__ import annotations

import rich_click as click

from corral.cli.errors import REFUSED, UNREACHABLE, Complaint
from corral.cli.lazy import Noun
from corral.cli.session import connected_as


@click.group(cls=Noun)
def kubernetes() -> None:
    """Take jobs from a Kubernetes cluster: CorralJob objects, and suspended Jobs with a queue."""


@kubernetes.command()
def crd() -> None:
    """Print the definition of CorralJob, for kubectl apply -f -."""
    from corral.controller.definition import definition_text

    click.echo(definition_text(), nl=False)


@kubernetes.command()
@click.option(
    "--kubeconfig",
    metavar="FILE",
    default="",
    help="How to reach the API server. Default: the service account of this pod, KUBECONFIG, ~/.kube/config.",
)
@click.option("--context", metavar="NAME", default="", help="Context of the kubeconfig. Default: its current one.")
@click.option(
    "--node-label",
    metavar="LABEL",
    default="kubernetes.io/hostname",
    show_default=True,
    help="Label of nodes that has the name by which Corral knows the node.",
)
@click.option(
    "--placeholder-image",
    metavar="IMAGE",
    default="",
    help="Image, with a shell, of the program that holds the seats of a suspended Job. Default: no container.",
)
@click.option("--heartbeat", metavar="FILE", default="", help="Touch this file after every pass, for a probe.")
def controller(kubeconfig: str, context: str, node_label: str, placeholder_image: str, heartbeat: str) -> None:
    """Run the controller. It submits CorralJob objects and suspended Jobs with the label corral.dev/queue as jobs of
    its own user, and writes back what becomes of them.

    Ctrl-C stops it. Jobs continue; a controller that starts again goes on where it was.
    """
    import signal
    import sys

    import structlog

    from corral.controller.object_controller import Controller, ControllerOptions
    from corral.controller.submissions import SubmittingClient
    from corral.kubernetes.cluster_api import ApiRefused, ApiUnreachable, MissingClient, NoCluster, connect

    structlog.configure(
        [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True),
         structlog.processors.format_exc_info, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )  # fmt: skip
    try:
        api = connect(kubeconfig, context)
    except (MissingClient, NoCluster) as missing:
        raise Complaint(str(missing), exit_code=UNREACHABLE) from None
    options = ControllerOptions(node_label, placeholder_image, heartbeat=heartbeat)
    with connected_as(SubmittingClient) as client:
        running = Controller(api, client, options)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: running.stop())
        try:
            running.run()
        except ApiRefused as refused:
            raise Complaint(f"the API server refused: {refused}", "which rights are needed: docs/operate/"
                            "kubernetes-install.md", exit_code=REFUSED) from None  # fmt: skip
        except ApiUnreachable as unreachable:
            raise Complaint(f"the API server cannot be reached: {unreachable}", exit_code=UNREACHABLE) from None
        finally:
            api.close()
