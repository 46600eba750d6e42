"""Demand and supply of areas, and prices by them."""
