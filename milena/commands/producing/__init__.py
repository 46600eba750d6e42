"""Lines of files and pipes, into topics."""
