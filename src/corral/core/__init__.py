"""The core (pure): events fold into state, facts and commands become events, a plan is checked and committed.

No input or output, no clock, no randomness, no logging: time and identity are arguments.
"""
