"""Remove guards of the production code one by one; the simulation must fail without each."""
