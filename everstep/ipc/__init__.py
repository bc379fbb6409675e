"""Talking to other processes of this machine: a progress page in shared memory, a lifeline, local sockets."""
