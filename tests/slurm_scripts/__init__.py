"""Scripts written for Slurm, run by a private Slurm and by Corral on equal simulated nodes (``make compat-slurm``)."""
