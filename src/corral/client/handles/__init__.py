"""Jobs as objects: the answers about a job, with methods that ask the server about it or change it."""
