"""What happens to a log whose files were damaged, and to one that deletes by itself."""
