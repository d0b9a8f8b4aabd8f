"""How often verdicts are wrong, on noise whose truth is known. `simulate_verdicts.py` prints the tables.

Each module has the tables of one kind of verdict: `TABLES` maps a name to a function of the number of simulations per
row and a random generator. The code that judges is the package's own.
"""
