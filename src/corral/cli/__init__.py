"""The command line: one module per noun, imported when it is used, so that every command starts quickly."""
