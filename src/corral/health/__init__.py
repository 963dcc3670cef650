"""The health of this machine: what its devices and the system report, what follows from it, and probing idle GPUs.

`readings` are values; `rules`, `xids`, `judgement` and `lemons` decide, without doing anything; `devices`, `nvml`,
`fault_injection`, `host`, `hardware` and `probes` ask the machine; `gpu_activity` says what GPUs do now; `monitor`
connects them; `watched` adds it to a backend.
"""
