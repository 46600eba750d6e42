"""What an archive holds back into a topic: what to write, where that stands, and what was done."""
