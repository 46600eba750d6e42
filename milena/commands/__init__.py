"""Commands of ``milena`` that take more than a few lines; ``milena.cli`` registers them."""
