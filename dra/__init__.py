"""dra-cpu: the companion of nri-cpu. It knows the machine, answers the kubelet and prepares claims.

Faults by number (A17) are those of docs/reliability.md.
"""
