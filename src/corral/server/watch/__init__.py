"""The health of many machines as only the server can see it: by how work ends on each, compared with the others."""
