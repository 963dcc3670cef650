"""The dashboard: its files, and how a browser signs in. What it shows comes from the API, like everything else."""
