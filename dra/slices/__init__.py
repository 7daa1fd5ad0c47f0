"""ResourceSlices: objects (devices as the Kubernetes API has them), limits (what the API takes). No server is asked."""
