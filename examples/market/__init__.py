"""Compute the demand, the supply and the prices of areas."""
