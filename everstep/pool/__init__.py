"""The pool agent of a node, the trials that it runs, and the local service."""
