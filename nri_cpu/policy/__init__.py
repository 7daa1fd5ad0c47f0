"""The decisions: who may have which claim, where each container belongs, what the runtime must be told. Pure."""
