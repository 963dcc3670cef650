"""What the commands of Slurm share: the command line, the connection, jobs and nodes as Slurm shows them, formats."""
