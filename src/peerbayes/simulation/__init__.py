"""The parts of `simulate`, in the order it needs them.

asked       the settings, checked
drawn       random choices from the seed: the rows of each peer, the network
population  all peers: their rows, their links, which of them lie
starts      the initial statistics
drivers     the strategy over the network, with secure sums or a defence
judging     evaluation of all peers on the same rows
course      the loop over rounds
references  errors of peers on their own and of central learners on the same rows
clock       time by activity
"""
