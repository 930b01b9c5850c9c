"""The decisions: plain data in, plain data out. Standard library only."""
