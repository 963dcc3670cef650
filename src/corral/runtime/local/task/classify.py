"""Classifies the failure of a program by its last output: the GPU's memory, the GPU itself, or the network.

A table of phrases that GPU libraries print, and the rules of the site, which come first. They only refine exit codes of
the program itself; anything unknown is an error of the program.
"""

from __future__ import annotations

#: (phrase, failure class, why). The first one found in the last lines counts.
_PHRASES = (
    (b"uncorrectable ECC error", "gpu_fault", "the GPU reported an uncorrectable memory error"),
    (b"GPU has fallen off the bus", "gpu_fault", "the GPU has fallen off the bus"),
    (b"GPU is lost", "gpu_fault", "the driver has lost the GPU"),
    (b"CUDA-capable device(s) is/are busy or unavailable", "gpu_fault", "the GPU was busy or not available"),
    (b"CUDA out of memory", "out_of_memory", "the GPU did not have enough memory for the task"),
    (b"HIP out of memory", "out_of_memory", "the GPU did not have enough memory for the task"),
    (b"CUDA error: out of memory", "out_of_memory", "the GPU did not have enough memory for the task"),
    (b"CUDA_ERROR_OUT_OF_MEMORY", "out_of_memory", "the GPU did not have enough memory for the task"),
    (b"RESOURCE_EXHAUSTED: Out of memory", "out_of_memory", "the GPU did not have enough memory for the task"),
    (b"ncclRemoteError", "network", "NCCL lost a peer"),
    (b"ncclSystemError", "network", "NCCL reported an error of the network or the system"),
)


def symptom(last_words: bytes) -> tuple[str | None, str]:
    for phrase, failure, why in _PHRASES:
        if phrase in last_words:
            return failure, f"{why} (its output says: {phrase.decode()!r})"
    return None, ""


def by_rules(rules: list[tuple[str, int | None, str, str]], code: int, last_words: bytes) -> tuple[str | None, str]:
    """The first rule of the site that applies: its class, and why."""
    for says, exit_code, failure, why in rules:
        if exit_code in (None, code) and says.encode() in last_words:
            found = f"its output says: {says!r}" if says else f"exit code {code}"
            return failure, f"{why} ({found})" if why else found
    return None, ""
