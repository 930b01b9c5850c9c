"""A Kubernetes operator that lets pods share physical GPUs with honest accounting."""

__version__ = "0.1.0"
