"""Why a gang waits, and the smallest changes that would start it."""
