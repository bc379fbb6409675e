"""Webhooks: what happened is told to other systems, from an outbox, signed, to allowed hosts only."""
