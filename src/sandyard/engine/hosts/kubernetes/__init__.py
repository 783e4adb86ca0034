"""Hosts on the nodes of a Kubernetes cluster: a DaemonSet runs the host service, and the engine follows its pods."""
