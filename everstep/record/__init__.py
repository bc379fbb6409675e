"""The record of a job: its metrics, from the script that reports them to the rows that are kept and drawn, and what it
printed, in chunks that can be searched. Without torch."""
