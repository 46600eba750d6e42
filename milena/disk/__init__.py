"""The only code that touches the operating system's files."""
