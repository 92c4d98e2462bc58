"""What the TCP listeners are made of, and the process's connection to systemd."""
