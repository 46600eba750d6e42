"""Parts of group requests that every dialect shares."""
