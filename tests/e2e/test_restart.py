"""What people see is the same before and after a restart: which jobs wait, in which order, why, and what was used."""

from __future__ import annotations

import time
from typing import Any

from tests.e2e.live import Live

#: Priorities, in the order of submission; so the line is not the order of submission.
PRIORITIES = (0, 5, 0, 9, 5, 0)


def seen(live: Live, waiting: list[str]) -> dict[str, Any]:
    """All that can be asked about them, without what changes with the clock, once each has its reason for waiting."""
    end = time.monotonic() + 30
    while not all(job["reason"] for job in live.jobs() if job["id"] in waiting):
        assert time.monotonic() < end, "no plan says why the jobs wait"
        time.sleep(0.02)
    jobs = live.jobs()
    queues = live.ask("GET", "/v1/queues")["queues"]
    usage = live.ask("GET", "/v1/usage")
    return {
        "jobs": jobs,
        "in full": [_still(live.job(job["id"])) for job in jobs],
        "why": [[gang["reasons"] for gang in live.ask("GET", f"/v1/jobs/{id}/why")["gangs"]] for id in waiting],
        "queues": [{name: queue[name] for name in queue if not name.endswith("gpu_ms")} for queue in queues],
        "usage": [(line["queue"], line["user"], line["day"], line["jobs"]) for line in usage["lines"]],
    }


def _still(job: dict[str, Any]) -> dict[str, Any]:
    """Without the GPU time of attempts that run, which grows meanwhile."""
    return job | {"history": [{k: v for k, v in each.items() if k != "gpu_ms"} for each in job["history"]]}


def used_gpu_ms(live: Live) -> int:
    return int(live.ask("GET", "/v1/usage")["gpu_ms"])


def test_a_restart_changes_nothing_that_people_see(live, tmp_path):
    server = live()
    server.start()
    server.until_over([server.submit({"command": "true", "gpus": 2}), server.submit({"command": "exit 3"})])
    log = tmp_path / "order"
    blocker = server.submit({"command": "sleep 1000", "gpus": 8, "preemptible": False})
    until_running(server, blocker)
    waiting = [
        server.submit({"command": f"echo $CORRAL_JOB_ID >> {log}", "gpus": 8, "priority": priority, "name": f"p{n}"})
        for n, priority in enumerate(PRIORITIES)
    ]
    held = server.submit({"command": "true", "gpus": 1})
    server.ask("POST", f"/v1/jobs/{held}/hold")

    before, used, began = seen(server, [*waiting, held]), used_gpu_ms(server), time.monotonic()
    server.kill()
    server.start()
    assert seen(server, [*waiting, held]) == before
    assert used <= used_gpu_ms(server) <= used + (time.monotonic() - began + 1) * 8 * 1000
    server.stop()
    server.start()
    assert seen(server, [*waiting, held]) == before

    server.ask("POST", f"/v1/jobs/{blocker}/cancel")
    server.until_over([blocker, *waiting])
    line = sorted(range(len(waiting)), key=lambda n: (-PRIORITIES[n], n))
    assert log.read_text().split() == [waiting[n] for n in line]


def until_running(server: Live, job: str) -> None:
    end = time.monotonic() + 30
    while server.job(job)["state"] != "running":
        assert time.monotonic() < end, "it does not start"
        time.sleep(0.02)


def test_a_key_that_was_used_before_a_restart_is_known_after_it(live):
    server = live()
    server.start()
    document = {"command": "true"}
    job = server.submit(document, "once")
    server.kill()
    server.start()
    assert server.submit(document, "once") == job
    assert len(server.jobs()) == 1


def test_tasks_go_on_while_the_server_is_away_and_their_ends_are_found(live, tmp_path):
    server = live()
    server.start()
    gate = tmp_path / "gate"
    jobs = {
        code: server.submit({"command": f"until [ -e {gate} ]; do sleep 0.05; done; exit {code}", "gpus": 1})
        for code in (0, 7)
    }
    for job in jobs.values():
        until_running(server, job)
    server.kill()
    gate.touch()
    time.sleep(0.5)  # they end while no server runs; if one is slow to, that is found as well
    server.start()
    found = server.until_over(list(jobs.values()))
    assert {code: found[job]["exit_code"] for code, job in jobs.items()} == {0: 0, 7: 7}
    assert [found[job]["attempts"] for job in jobs.values()] == [1, 1]
