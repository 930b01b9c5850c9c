"""The thin edge to the Kubernetes API: raw JSON in and out, typed errors, bounded requests, election and events."""
