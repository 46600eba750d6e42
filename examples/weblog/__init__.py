"""Lines of a web site's access log as columns, and statistics of them."""
