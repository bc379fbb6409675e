#!/bin/bash
# The container's entry point. A command that is given to the container is run instead.
exec python3 /etc/datascience/run.py "$@"
