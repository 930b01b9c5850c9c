"""From a SharePod to the wanted number of Pods, and back to its status."""
