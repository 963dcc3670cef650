"""Reservations: what will be free when, and what a reservation leaves for later gangs."""
