"""A real control plane on this machine, without containers: etcd, kube-apiserver, kube-controller-manager,
kube-scheduler and kwok with fake GPU nodes. For `sharepod demo`, the cluster tests and the benchmarks.
"""
