"""Guards of the production code, taken out one by one: does the simulation notice?"""
