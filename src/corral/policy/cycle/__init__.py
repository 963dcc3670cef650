"""One planning cycle: the order of waiting gangs, and what each of them gets."""
