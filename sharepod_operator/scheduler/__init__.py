"""From an unbound pod to a Binding."""
