"""HTTP: who may call, what they send, which function answers."""
