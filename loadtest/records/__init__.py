"""What is written, how it goes out, and what comes back."""
