"""The server that clients and agents connect to: the second driver of the engine, with real time and real nodes."""
