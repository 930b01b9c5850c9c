"""Kubernetes objects to core records and back."""
