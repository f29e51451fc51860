"""Differential privacy: what one row may change, the noise that hides it, and what it costs.

    accounting   `Privacy`, what is promised; ε, δ and μ; a ledger
    mechanism    one release: clipped, added up exactly, noise added, projected
    row_steps    q of rows, each independent of the others to the last bit
    noise        discrete Gaussian noise, exact, and noise that cancels between neighbours
    units        location and scale of columns, bought
    scheme       what follows from `Privacy` for one network, and what it will cost, before anybody starts
    exposure     what a run exposes of a row

All are pure functions of public numbers, of rows and of a source of random bytes, which is an argument.
"""
