"""Parse the lines of a web site's access log into columns, and compute statistics."""
