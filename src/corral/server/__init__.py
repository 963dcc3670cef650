"""What people and agents talk to: the second driver of the engine, on real time and real machines."""
