"""How things are written down: what people type and what programs exchange. Knows texts; decides nothing."""
