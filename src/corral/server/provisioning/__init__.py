"""Provisioning: keeps each fleet at the wanted number of nodes."""
