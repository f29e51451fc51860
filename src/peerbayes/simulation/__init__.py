"""The parts of `simulate`, in the order it needs them.

asked       what a simulation is asked for
drawn       what its seed decides: who holds which rows, who hears whom
population  all peers: their rows, their links, who of them lies
starts      the statistics that they begin with
drivers     the strategy over the network, with secure sums or a defence
judging     the rows that all are judged on
course      the rounds
references  what peers alone and a central learner make of the same rows
clock       what the time was spent on
"""
