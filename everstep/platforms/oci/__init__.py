"""The platform of OCI Data Science."""
