"""stub"""


def is_simulated(uuid: str) -> bool:
    return uuid.startswith("SIM-")


def visibility(gpus: tuple[str, ...]) -> dict[str, str]:
    env = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if any(map(is_simulated, gpus)):
        env["CORRAL_SIMULATED_GPUS"] = "1"
    return env
