"""The platform of Kubernetes clusters."""
