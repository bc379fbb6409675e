"""One file per revision. A released revision never changes: it names its columns itself."""
