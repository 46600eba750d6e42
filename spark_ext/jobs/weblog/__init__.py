"""Lines of a web site's access log as columns, and what is counted of them."""
