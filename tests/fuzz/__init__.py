"""Seeded drivers that say hostile things at the borders."""
