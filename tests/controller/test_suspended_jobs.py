"""Suspended `batch/v1` Jobs with a queue, on a real API server: admitted, seated, preempted, ended."""

from __future__ import annotations

import json
import signal

from corral.controller.held_seats import JOB, REASON, STATE
from corral.kubernetes.held_pods import HELD_BY, SEAT
from tests.controller.controller_site import ControllerSite, suspended_job


def notes(site: ControllerSite, namespace: str, name: str) -> dict[str, str]:
    return site.get("job", namespace, name)["metadata"].get("annotations") or {}


def held(site: ControllerSite, namespace: str, name: str) -> str:
    """The id of the job that holds the seats."""
    return str(site.until("it is submitted", lambda: notes(site, namespace, name).get(JOB)))


def pods(site: ControllerSite, namespace: str, *phases: str) -> list:
    found = json.loads(site.plane.kubectl("get", "pods", "-n", namespace, "-o", "json"))["items"]
    return [pod for pod in found if not phases or pod["status"].get("phase") in phases]


def test_a_suspended_job_runs_on_the_seats_that_corral_holds_for_it_and_completes(site):
    site.namespace("sj-run")
    options = json.dumps({"priority": "high", "estimate": "10m"})
    job = suspended_job("sj-run", "train", "sleep 2", gpus=2, parallelism=3, completions=3,
                        notes={"corral.dev/options": options})  # fmt: skip
    site.apply(job)
    id = held(site, "sj-run", "train")
    view = site.until("it runs", lambda: (j := site.live.job(id))["state"] == "running" and j)
    assert (view["gpus"], view["gpus_held"], view["priority"], view["estimate_ms"]) == (6, 6, 100, 600_000)
    running = site.until(
        "three pods run", lambda: len(found := pods(site, "sj-run", "Running", "Succeeded")) == 3 and found
    )
    assert {pod["metadata"]["labels"][SEAT] for pod in running} == {"0", "1", "2"}
    assert {pod["metadata"]["labels"][HELD_BY] for pod in running} == {id}
    assert all(pod["spec"]["nodeSelector"] == {"corral.dev/node": "here"} for pod in running)
    assert not any(pod["spec"].get("schedulingGates") for pod in running)
    site.plane.kubectl("wait", "-n", "sj-run", "--for=condition=Complete", "job/train", "--timeout=50s")
    site.until("its seats are free", lambda: site.live.job(id)["state"] == "succeeded", state=lambda: site.live.job(id))
    assert notes(site, "sj-run", "train")[STATE] == "succeeded"


def test_a_job_that_nobody_suspended_is_suspended_until_it_has_its_seats(site):
    site.namespace("sj-eager")
    site.apply(suspended_job("sj-eager", "big", "sleep 300", gpus=8))
    big = held(site, "sj-eager", "big")
    site.until("it runs", lambda: pods(site, "sj-eager", "Running"))
    site.apply(suspended_job("sj-eager", "eager", "sleep 3", gpus=8, suspend=False))
    eager = held(site, "sj-eager", "eager")
    assert site.get("job", "sj-eager", "eager")["spec"]["suspend"] is True
    site.until("it says why it waits", lambda: notes(site, "sj-eager", "eager").get(REASON))
    assert notes(site, "sj-eager", "eager")[STATE] == "waiting"
    assert len(pods(site, "sj-eager", "Running")) == 1
    site.plane.kubectl("delete", "job", "-n", "sj-eager", "big")
    site.until("its seats are free", lambda: site.live.job(big)["state"] == "cancelled")
    site.plane.kubectl("wait", "-n", "sj-eager", "--for=condition=Complete", "job/eager", "--timeout=50s")
    site.until("it has succeeded", lambda: site.live.job(eager)["state"] == "succeeded")


def test_a_preempted_job_is_suspended_again_and_comes_back(site):
    site.namespace("sj-preempt")
    site.apply(
        suspended_job("sj-preempt", "low", "sleep 300", gpus=8, notes={"corral.dev/options": '{"priority": "low"}'})
    )
    low = held(site, "sj-preempt", "low")
    first = site.until("it runs", lambda: pods(site, "sj-preempt", "Running"))[0]["metadata"]["name"]
    urgent = site.live.submit(
        {"command": "sleep 4", "gpus": 8, "priority": "high", "queue": "lab", "directory": "/tmp"}
    )
    site.until("it is suspended", lambda: site.get("job", "sj-preempt", "low")["spec"]["suspend"])
    site.until("its pod is gone", lambda: not pods(site, "sj-preempt", "Running", "Pending"))
    site.live.until_over([urgent])
    site.until("it runs again", lambda: pods(site, "sj-preempt", "Running"))
    assert pods(site, "sj-preempt", "Running")[0]["metadata"]["name"] != first
    assert site.live.job(low)["attempts"] == 2
    site.plane.kubectl("delete", "job", "-n", "sj-preempt", "low")
    site.until("its seats are free", lambda: site.live.job(low)["state"] == "cancelled")


def test_a_failed_job_gives_its_seats_back_and_a_cancelled_one_stays_suspended(site):
    site.namespace("sj-fail")
    site.apply(suspended_job("sj-fail", "bad", "exit 3"), suspended_job("sj-fail", "stopped", "sleep 300"))
    bad, stopped = held(site, "sj-fail", "bad"), held(site, "sj-fail", "stopped")
    site.plane.kubectl("wait", "-n", "sj-fail", "--for=condition=Failed", "job/bad", "--timeout=50s")
    site.until("its seats are free", lambda: site.live.job(bad)["state"] == "cancelled")
    assert notes(site, "sj-fail", "bad")[STATE] == "failed"
    site.until("it runs", lambda: pods(site, "sj-fail", "Running"))
    site.live.ask("POST", f"/v1/jobs/{stopped}/cancel")
    site.until("it is suspended", lambda: site.get("job", "sj-fail", "stopped")["spec"]["suspend"])
    site.until("it says so", lambda: notes(site, "sj-fail", "stopped").get(STATE) == "cancelled")
    site.plane.kubectl("annotate", "job", "-n", "sj-fail", "stopped", "corral.dev/job-")

    def queued() -> str | None:
        id = notes(site, "sj-fail", "stopped").get(JOB)
        return None if id == stopped else id

    again = site.until("it is queued again", queued)
    site.until("it runs again", lambda: pods(site, "sj-fail", "Running"))
    assert site.live.job(again)["state"] == "running"
    site.plane.kubectl("delete", "job", "-n", "sj-fail", "stopped")


def test_what_cannot_be_held_is_refused_with_the_reason(site):
    site.namespace("sj-bad")
    site.apply(
        suspended_job("sj-bad", "queue", "true", queue="other"),
        suspended_job("sj-bad", "options", "true", notes={"corral.dev/options": '{"command": "rm"}'}),
        suspended_job("sj-bad", "huge", "true", gpus=64),
    )
    for name, text in (("queue", "may not be used"), ("options", "may not set command"), ("huge", "GPU")):
        why = site.until(f"{name} is refused", lambda: (n := notes(site, "sj-bad", name)).get(STATE) == "refused" and n)  # noqa: B023
        assert text in why[REASON]
        assert site.get("job", "sj-bad", name)["spec"]["suspend"] is True


def test_a_killed_controller_and_a_killed_server_lose_no_job_and_start_none_twice(site):
    site.namespace("sj-kill")
    names = [f"job-{n}" for n in range(4)]
    site.apply(*(suspended_job("sj-kill", name, "sleep 8") for name in names))
    held(site, "sj-kill", names[0])
    site.end_controller(signal.SIGKILL)
    site.live.kill()
    site.live.start()
    site.start_controller()
    for name in names:
        site.plane.kubectl("wait", "-n", "sj-kill", "--for=condition=Complete", f"job/{name}", "--timeout=90s")
    jobs = [held(site, "sj-kill", name) for name in names]
    site.until("all have succeeded", lambda: {site.live.job(id)["state"] for id in jobs} == {"succeeded"})
    mine = [job for job in site.live.jobs() if job["labels"].get("kubernetes.object", "").startswith("sj-kill/")]
    assert len(mine) == len(names)
    assert len(pods(site, "sj-kill")) == len(names)
