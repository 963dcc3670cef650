"""What people ask for, checked and turned into events, or refused with a reason."""
