"""An archive held against the topic that it was made of, and what is found."""
