"""Reading one partition: a pure cursor, and the shell that fetches ahead."""
