"""Every option of a node, one frozen value checked as a whole, and the page that describes them."""
