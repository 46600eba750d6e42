"""HTTP basics: errors, media types, headers, content codings, URLs and plain responses."""
