"""What queries say: options as text, and what they mean together (pure)."""
