"""The environment of jobs: the variables that Corral sets, and what a job takes along from where it is submitted."""
