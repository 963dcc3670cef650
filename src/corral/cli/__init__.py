"""How people talk to Corral: one module a noun, loaded when it is asked for, so that every answer begins at once."""
