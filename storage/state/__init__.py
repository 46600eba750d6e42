"""State of a log in small files with checksums: leader epochs, writers (producers, keys, transactions), checkpoints."""
