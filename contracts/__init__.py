"""What the stages say to each other. Imports nothing of ours and does no I/O."""
