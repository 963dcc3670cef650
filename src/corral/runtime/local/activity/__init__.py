"""What the tasks of this machine do: CPU time and memory of their processes, and the steps that their ranks report."""
