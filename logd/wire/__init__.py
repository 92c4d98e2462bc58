"""Shared by the server and the clients: requests, replies, addresses, and how batches are read."""
