"""Who belongs to a job, and every decision about it. Pure."""
