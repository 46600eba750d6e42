"""The options of a node, as one frozen value that is checked as a whole, and the page that describes them."""
