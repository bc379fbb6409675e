"""Webhooks: events for other systems, sent from an outbox, signed, to allowed hosts only."""
