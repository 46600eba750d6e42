"""Write lines of files and pipes to topics."""
