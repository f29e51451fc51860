"""The simulator: all peers in one process, on one clock.

settings    what a simulation is asked for
population  all peers: their rows, their links, who of them lies
starts      the statistics that they begin with
drivers     the strategy over the network, with secure sums or a defence
loop        the rounds
evaluation  test rows, and what peers alone and pooled learning reach on them
result      history, statistics, references
"""
