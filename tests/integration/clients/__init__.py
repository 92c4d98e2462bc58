"""Clients on real daemons, with everything between and around them failing."""
