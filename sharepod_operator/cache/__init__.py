"""The operator's view of the cluster: what was observed, and what was assumed until it is."""
