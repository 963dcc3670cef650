"""`CorralJob` objects on a real API server, with the controller as a process of its own."""

from __future__ import annotations

import signal

import pytest

from tests.controller.controller_site import corral_job


def conditions(found) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in found["status"]["conditions"]}


def test_apply_get_and_delete_make_and_cancel_a_job(site):
    site.namespace("cj-round")
    assert "created" in site.apply(corral_job("cj-round", "train", command="sleep 300", gpus=2, labels={"a": "b"}))
    found = site.phase("cj-round", "train", "Running")
    status = found["status"]
    assert (status["queue"], status["gpus"], status["nodes"], status["nodesTotal"]) == ("lab", 2, ["here"], 1)
    assert status["observedGeneration"] == found["metadata"]["generation"]
    assert conditions(found) == {"Accepted": ("True", "Submitted"), "Running": ("True", "Running")}
    job = site.live.job(status["job"])
    assert job["labels"]["a"] == "b"
    assert job["labels"]["kubernetes.object"] == "cj-round/train"
    columns = site.plane.kubectl("get", "cjob", "-n", "cj-round").split("\n")
    assert columns[0].split()[:4] == ["NAME", "PHASE", "JOB", "QUEUE"]
    assert columns[1].split()[:4] == ["train", "Running", status["job"], "lab"]
    site.plane.kubectl("delete", "cjob", "-n", "cj-round", "train")
    site.until("the job is cancelled", lambda: site.live.job(status["job"])["state"] == "cancelled")


def test_the_end_is_reported_with_its_exit_code_and_kubectl_can_wait_for_it(site):
    site.namespace("cj-end")
    site.apply(corral_job("cj-end", "good", command="true"), corral_job("cj-end", "bad", command="exit 3"))
    site.plane.kubectl("wait", "-n", "cj-end", "--for=condition=Complete", "cjob/good", "--timeout=50s")
    bad = site.phase("cj-end", "bad", "Failed")
    assert bad["status"]["exitCode"] == 3
    assert bad["status"]["failure"] == "user_error"
    assert conditions(bad)["Failed"] == ("True", "UserError")
    assert bad["status"]["completionTime"] >= bad["status"]["startTime"]


def test_what_corral_refuses_says_why_and_is_taken_once_it_is_right(site):
    site.namespace("cj-refused", queues="")
    site.apply(corral_job("cj-refused", "job", command="sleep 300", tasks="2..x"))
    found = site.phase("cj-refused", "job", "Refused")
    assert conditions(found)["Accepted"] == ("False", "QueueNotAllowed")
    assert "kubectl annotate namespace cj-refused corral.dev/queues=QUEUE" in found["status"]["reason"]
    site.plane.kubectl("annotate", "namespace", "cj-refused", "corral.dev/queues=lab/vision,other")
    site.until(
        "the number of tasks is refused",
        lambda: "tasks" in site.phase("cj-refused", "job", "Refused")["status"]["reason"],
    )
    site.apply(corral_job("cj-refused", "job", command="sleep 300", tasks=2, queue="lab"))
    site.until(
        "the queue is refused",
        lambda: "queue lab may not be used" in site.phase("cj-refused", "job", "Refused")["status"]["reason"],
    )
    site.apply(corral_job("cj-refused", "job", command="sleep 300", tasks=2))
    assert site.phase("cj-refused", "job", "Running")["status"]["queue"] == "lab/vision"
    site.plane.kubectl("delete", "cjob", "-n", "cj-refused", "job")


@pytest.mark.parametrize(
    ("spec", "text"), [({"gpuss": 1}, "gpuss"), ({"time_limit": "soon"}, "time_limit"), ({"priority": [1]}, "priority")]
)
def test_the_api_server_itself_refuses_keys_and_values_that_no_job_file_has(site, spec, text):
    text_of = site.plane.kubectl(
        "create",
        "-f",
        "-",
        text=__import__("json").dumps(corral_job("default", "x", command="true", **spec)),
        check=False,
    )
    assert text in text_of
    assert "created" not in text_of


def test_a_change_of_priority_is_made_in_place_and_any_other_replaces_the_job(site):
    site.namespace("cj-change")
    site.apply(corral_job("cj-change", "job", command="sleep 300", gpus=1))
    first = site.phase("cj-change", "job", "Running")["status"]["job"]
    site.apply(corral_job("cj-change", "job", command="sleep 300", gpus=1, priority=7))
    site.until("the priority is 7", lambda: site.live.job(first)["priority"] == 7)
    assert site.phase("cj-change", "job", "Running")["status"]["job"] == first
    site.apply(corral_job("cj-change", "job", command="sleep 300", gpus=2, priority=7))
    found = site.until(
        "another job runs",
        lambda: (
            (s := site.phase("cj-change", "job", "Running", "Stopping", "Starting", "Waiting")["status"])["job"]
            != first
            and s
        ),
    )
    assert site.live.job(first)["state"] == "cancelled"
    assert site.live.job(found["job"])["gpus"] == 2
    site.plane.kubectl("delete", "cjob", "-n", "cj-change", "job")


def test_a_job_that_waits_says_why_and_when_it_may_start(site):
    site.namespace("cj-wait")
    site.apply(corral_job("cj-wait", "big", command="sleep 300", gpus=8, time_limit="1h"))
    site.phase("cj-wait", "big", "Running")
    site.apply(corral_job("cj-wait", "next", command="true", gpus=8))
    status = site.until(
        "a reason",
        lambda: (
            (s := site.phase("cj-wait", "next", "Waiting")["status"]).get("reason") and s.get("expectedStart") and s
        ),
    )
    assert status["conditions"][1]["type"] == "Running"
    assert status["conditions"][1]["message"] == status["reason"]
    site.plane.kubectl("delete", "cjob", "-n", "cj-wait", "big", "next")


def test_neither_a_killed_controller_nor_a_killed_server_loses_or_repeats_anything(site):
    """Objects applied, ended and deleted while nothing looks: all is made good, with one job for each object."""
    site.namespace("cj-kill")
    names = [f"job-{n}" for n in range(6)]
    site.apply(*(corral_job("cj-kill", name, command="sleep 300") for name in names[:3]))
    site.end_controller(signal.SIGKILL)  # in the middle of them
    site.apply(*(corral_job("cj-kill", name, command="sleep 300") for name in names[3:]))
    site.start_controller()
    for name in names:
        site.phase("cj-kill", name, "Running")
    site.live.kill()
    site.plane.kubectl("delete", "cjob", "-n", "cj-kill", *names[:2])
    site.live.start()
    site.end_controller(signal.SIGKILL)
    site.plane.kubectl("delete", "cjob", "-n", "cj-kill", names[2])
    site.start_controller()

    def states() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for job in site.live.jobs():
            if job["labels"].get("kubernetes.object", "").startswith("cj-kill/"):
                found.setdefault(job["name"], []).append(job["state"])
        return found

    wanted = {name: ["cancelled" if n < 3 else "running"] for n, name in enumerate(names)}
    site.until("three are cancelled, three run", lambda: states() == wanted, state=states)
    site.plane.kubectl("delete", "cjob", "-n", "cj-kill", "--all")
    wanted = {name: ["cancelled"] for name in names}
    site.until("all are cancelled", lambda: states() == wanted, state=states)
