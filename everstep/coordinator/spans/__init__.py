"""Spans of experiments, trials and jobs for OpenTelemetry: made from what the store holds, sent without waiting."""
