"""Differential privacy: what one row may change, the noise that hides it, and what it costs.

    terms        the value `Privacy`: what is promised
    accounting   ε, δ and μ; a ledger
    coordinates  h, in which rows are clipped
    projection   Π, what residuals fulfil
    row_steps    q of rows, each independent of the others to the last bit
    sampling     discrete Gaussian noise, exact
    mechanism    one release: clipped, added up exactly, noise added, projected
    units        location and scale of columns, bought
    edges        noise that cancels between neighbours
    scheme       what follows from `Privacy` for one network
    plan         what it will cost, before anybody starts
    simulated    all of it for every peer of a simulation

All but the last are pure functions of public numbers, of rows and of a source of random bytes, which is an argument.
"""
