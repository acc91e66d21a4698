"""Work in other processes: of this machine or a cluster, or the ranks of one training; signals that stop it."""
