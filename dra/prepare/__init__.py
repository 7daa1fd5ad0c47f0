"""Preparing claims: choice (pure), ledger (the disk), preparer (the kubelet's view), start (recovery)."""
