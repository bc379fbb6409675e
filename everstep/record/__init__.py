"""The record of a job: what it printed, in chunks that can be searched. Pure, and without torch."""
