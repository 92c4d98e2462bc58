"""Coordination of several daemons: the register that names the leader, and etcd, which keeps it."""
