"""Questions and orders of the API, brought to whoever can answer them."""
