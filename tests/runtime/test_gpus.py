"""GPUs as they are found, made up, and shown to tasks."""

import json
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Gpu, amount_of
from corral.runtime import gpu_visibility, gpus
from corral.runtime.inventory import inventory


def test_made_up_gpus_are_marked_and_numbered():
    made = gpus.simulated("2xH100")
    assert made == (Gpu("SIM-H100-0", "H100", 81920), Gpu("SIM-H100-1", "H100", 81920))
    assert all(gpu_visibility.is_simulated(gpu.uuid) for gpu in made)


def test_several_models_are_several_islands():
    made = gpus.simulated("2xA100-40GB, l4")
    assert [(gpu.uuid, gpu.vram_mib, gpu.island) for gpu in made] == [
        ("SIM-A100-0", 40960, 0),
        ("SIM-A100-1", 40960, 0),
        ("SIM-L4-0", 24576, 1),
    ]


def test_uuids_differ_also_when_a_model_is_named_twice():
    made = gpus.simulated("2xA100-40GB,2xA100-80GB")
    assert len({gpu.uuid for gpu in made}) == 4


@pytest.mark.parametrize("text", ["", "8x", "8xH1000", "0xH100", "2000xH100", "8 x H100", "H100,,L4"])
def test_what_names_no_gpus_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"8xH100|from 1 to 1024"):
        gpus.simulated(text)


@pytest.mark.parametrize(
    ("uuids", "env"),
    [
        ((), {"CUDA_VISIBLE_DEVICES": ""}),
        (("GPU-1", "GPU-2"), {"CUDA_VISIBLE_DEVICES": "GPU-1,GPU-2"}),
        (("SIM-H100-0",), {"CUDA_VISIBLE_DEVICES": "SIM-H100-0", "CORRAL_SIMULATED_GPUS": "1"}),
        (("AMD-GPU-a1",), {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "GPU-a1"}),
    ],
)
def test_a_task_is_shown_its_own_gpus(uuids, env):
    assert gpu_visibility.visibility(uuids) == env


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA Q7", "Q7"),
    ],
)
def test_models_are_known_by_their_usual_names(name, model):
    assert gpus.model_of(name) == model


class Nvml(SimpleNamespace):
    """As much of NVML as is asked: four GPUs, the first two linked, the others behind one switch."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_FEATURE_ENABLED = 1
    NVML_NVLINK_MAX_LINKS = 2
    remotes = ({0: "B1"}, {0: "B0"}, {0: "SWITCH"}, {0: "SWITCH"})

    def nvmlInit(self): ...  # noqa: N802

    def nvmlShutdown(self): ...  # noqa: N802

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 4

    def nvmlDeviceGetHandleByIndex(self, i):  # noqa: N802
        return i

    def nvmlDeviceGetUUID(self, i):  # noqa: N802
        return f"GPU-{i}".encode()

    def nvmlDeviceGetName(self, i):  # noqa: N802
        return "NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetMemoryInfo(self, i):  # noqa: N802
        return SimpleNamespace(total=81559 << 20)

    def nvmlDeviceGetPciInfo(self, i):  # noqa: N802
        return SimpleNamespace(busId=f"b{i}")

    def nvmlDeviceGetNvLinkState(self, i, link):  # noqa: N802
        if link not in self.remotes[i]:
            raise self.NVMLError
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, i, link):  # noqa: N802
        return SimpleNamespace(busId=self.remotes[i][link].lower().encode())


def test_nvidia_gpus_with_their_islands(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert gpus.nvidia() == tuple(Gpu(f"GPU-{i}", "H100", 81559, i // 2) for i in range(4))


def test_without_links_every_gpu_is_an_island_unless_peers_say_otherwise(monkeypatch):
    class Unlinked(Nvml):
        remotes = ({}, {}, {}, {})

    monkeypatch.setitem(sys.modules, "pynvml", Unlinked())
    assert [gpu.island for gpu in gpus.nvidia()] == [0, 1, 2, 3]

    class Peers(Unlinked):
        def nvmlDeviceGetP2PStatus(self, a, b, index):  # noqa: N802
            return 0

    monkeypatch.setitem(sys.modules, "pynvml", Peers())
    assert [gpu.island for gpu in gpus.nvidia()] == [0, 0, 0, 0]


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch):
    class Driverless(Nvml):
        def nvmlInit(self):  # noqa: N802
            raise self.NVMLError

    monkeypatch.setitem(sys.modules, "pynvml", Driverless())
    assert gpus.nvidia() == ()


def test_amd_gpus_by_their_tool(tmp_path: Path, monkeypatch):
    listed = [{"gpu": 0, "bdf": "0000:01:00.0", "uuid": "74a1", "hip_uuid": "GPU-a1b2"}]
    described = [{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X"}, "vram": {"size": {"value": 196592, "unit": "MB"}}}]  # fmt: skip  # noqa: E501
    (tmp_path / "list.json").write_text(json.dumps(listed))
    (tmp_path / "static.json").write_text(json.dumps({"gpu_data": described}))
    tool = tmp_path / "amd-smi"
    tool.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/$1.json"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert gpus.amd() == (Gpu("AMD-GPU-a1b2", "MI300X", 196592),)


def test_this_machine_as_a_node():
    whole = inventory("here", gpus.simulated("1xL4"))
    part = inventory("here", (), cpu_milli_reserved=500, memory_mib_reserved=1000)
    assert whole.name == "here"
    assert [gpu.model for gpu in whole.gpus] == ["L4"]
    for name, kept_back in ((CPU_MILLI, 500), (MEMORY_MIB, 1000)):
        all_of_it = amount_of(whole.amounts, name)
        assert all_of_it is not None
        assert amount_of(part.amounts, name) == all_of_it - kept_back
    assert inventory().name
