"""Policies that sort all running and waiting gangs in every cycle; gangs that do not fit wait."""
