"""A server that speaks the calls of OCI that we use, and runs what it is sent."""
