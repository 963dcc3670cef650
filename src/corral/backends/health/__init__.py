"""Is this machine well? What its devices and the system tell, what follows from it, and trying what is idle.

`readings` are values; `rules`, `xids`, `judgement` and `lemons` decide, without doing anything; `devices`, `nvml`,
`drills`, `host`, `anatomy` and `errands` ask the machine; `monitor` strings them together; `watched` puts it behind the
seam of the backends.
"""
