"""The nursery is a fork server: one process with a single thread that has imported torch and forks workers on demand.

A program of its own (main.py), started and spoken to by the agent (nursery/client.py). It never touches CUDA, starts
no thread, and runs no code of the user's: only its forks do."""
