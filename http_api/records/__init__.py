"""Parts of record requests that every dialect shares."""
