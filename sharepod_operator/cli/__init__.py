"""The command `sharepod`."""
