"""Differential privacy: the sensitivity to one row, the noise that hides it, and what that costs.

    terms        the value `Privacy`: what is promised
    accounting   ε, δ and μ; a ledger
    coordinates  h, in which rows are clipped
    projection   Π, on the constraints that residuals satisfy
    row_steps    q of rows, each independent of the others to the last bit
    sampling     exact discrete Gaussian noise
    mechanism    one release: clipped, summed exactly, noise added, projected
    units        location and scale of columns, estimated with noise
    edges        noise that cancels between neighbours
    scheme       clip, noise and ledger that follow from `Privacy` for one network
    plan         the cost of privacy, before anybody starts
    simulated    all of it for every peer of a simulation

All but the last are pure functions of public numbers, of rows and of a source of random bytes, which is an argument.
"""
