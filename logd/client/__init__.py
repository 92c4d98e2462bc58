"""The blocking clients: client, writer and reader."""
