"""How agents get onto machines that a provider gives: one interface, and an implementation for each provider."""
