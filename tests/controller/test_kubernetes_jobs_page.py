"""The examples of docs/kubernetes-jobs.md, run exactly as printed and in their order."""

from __future__ import annotations

import os
import re
import subprocess

from tests.architecture.repository import ROOT

BLOCK = re.compile(r"```(yaml|sh)\n(.*?)```", re.DOTALL)


def test_every_example_of_the_page_works_as_printed(site, tmp_path):
    site.plane.json("POST", "/api/v1/namespaces", {"metadata": {"name": "vision"}})
    for queue in ("lab/shared",):
        site.live.ask("PUT", f"/v1/queues/{queue}", {})
    programs = f"{site.plane.root / 'bin'}:{os.environ['PATH']}"
    variables = os.environ | {"PATH": programs, "KUBECONFIG": str(site.plane.kubeconfig)}
    outputs = []
    for kind, text in BLOCK.findall((ROOT / "docs/kubernetes-jobs.md").read_text()):
        if kind == "yaml":
            (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
            continue
        for line in text.splitlines():
            done = subprocess.run(
                ["/bin/sh", "-c", line], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=150
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{site.log()}"
            outputs.append(done.stdout)
    assert any("corraljob.corral.dev/train-7b condition met" in output for output in outputs)
    assert outputs.count("job.batch/finetune condition met\n") == 2
