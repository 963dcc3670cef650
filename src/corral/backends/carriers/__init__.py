"""How agents come onto machines that something else gives: one seam, and an implementation for each engine."""
