"""Which gangs are preempted for which gang: rights, candidates, and the search for victims."""
