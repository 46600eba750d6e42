"""The metadata quorum: consensus (how nodes agree) and machine (what they agree on)."""
