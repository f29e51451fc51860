"""A real peer: one data owner's side of a network without a server. Needs `pip install 'peerbayes[peer]'`."""
