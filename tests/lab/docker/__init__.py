"""A Docker engine on a unix socket."""
