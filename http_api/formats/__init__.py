"""Formats of records in requests and responses: JSON, base64, text, lines, Arrow, and how streams frame them."""
