"""A replica's folder and the data directory that holds them; what is left of both after a crash."""
