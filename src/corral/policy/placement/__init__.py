"""Where the tasks of a gang go: seats that fit the topology, and how seats are scored."""
